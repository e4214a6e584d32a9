"""nvidia-smi's table and CSV, read for one process and the whole card. Made in the shape of driver 570's output."""

from dataclasses import replace

import pytest

from onecard.plan.nvidia_smi import DriverFigures, read_nvidia_smi

TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.133.07             Driver Version: 570.133.07     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA GeForce RTX 4070        Off |   00000000:01:00.0  On |                  N/A |
| 30%   61C    P2            178W /  200W |    6582MiB /  12282MiB |     98%      Default |
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|=========================================================================================|
|    0   N/A  N/A            1861      G   /usr/lib/xorg/Xorg                      402MiB |
|    0   N/A  N/A            2077    C+G   ...rack-uuid=3190708988185955192        301MiB |
|    0   N/A  N/A           35811      C   python                                 4464MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_the_table_gives_the_process_and_the_card() -> None:
    seen = read_nvidia_smi(TABLE)
    assert seen == DriverFigures(
        process_bytes=4464 * 2**20,
        used_bytes=6582 * 2**20,
        total_bytes=12282 * 2**20,
        card_name="NVIDIA GeForce RTX 4070",
    )
    assert seen.other_bytes == 2118 * 2**20


TWO_CARDS = """\
| NVIDIA-SMI 570.133.07             Driver Version: 570.133.07     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA GeForce RTX 4070        Off |   00000000:01:00.0  On |                  N/A |
| 30%   61C    P2            178W /  200W |     700MiB /  12282MiB |      3%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 3090        Off |   00000000:02:00.0 Off |                  N/A |
| 30%   61C    P2            330W /  350W |   21000MiB /  24576MiB |     98%      Default |
+-----------------------------------------------------------------------------------------+
|    0   N/A  N/A            1861      G   /usr/lib/xorg/Xorg                      402MiB |
|    1   N/A  N/A           35811      C   python                                20500MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_of_two_cards_the_one_of_the_process_is_meant() -> None:
    seen = read_nvidia_smi(TWO_CARDS)
    assert seen == DriverFigures(
        process_bytes=20500 * 2**20,
        used_bytes=21000 * 2**20,
        total_bytes=24576 * 2**20,
        card_name="NVIDIA GeForce RTX 3090",
    )
    assert seen.other_bytes == 500 * 2**20
    only_second = "".join(TWO_CARDS.splitlines(keepends=True)[6:])
    assert read_nvidia_smi(only_second) == seen
    nameless = "".join(line for line in TWO_CARDS.splitlines(keepends=True) if "NVIDIA" not in line)
    assert read_nvidia_smi(nameless) == replace(seen, card_name="")  # counted
    process_alone = "".join(TWO_CARDS.splitlines(keepends=True)[-2:])
    assert read_nvidia_smi(process_alone) == DriverFigures(process_bytes=20500 * 2**20)


def test_the_csv_gives_the_process() -> None:
    assert read_nvidia_smi("pid, process_name, used_gpu_memory [MiB]\n35811, python3, 4464 MiB\n") == DriverFigures(
        process_bytes=4464 * 2**20
    )


def test_python_is_preferred_to_a_larger_stranger() -> None:
    text = "1, blender, 9000 MiB\n2, /usr/bin/python3.12, 4464 MiB\n"
    seen = read_nvidia_smi(text)
    assert seen is not None
    assert seen.process_bytes == 4464 * 2**20


def test_a_text_without_a_computing_process_says_so() -> None:
    assert read_nvidia_smi("") is None
    assert read_nvidia_smi(TABLE.replace("      C   python ", "      G   python ").replace("C+G", "  G")) is None


WINDOWS = """\
| NVIDIA-SMI 566.36                 Driver Version: 566.36         CUDA Version: 12.7     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                  Driver-Model | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA GeForce RTX 4070      WDDM  |   00000000:01:00.0  On |                  N/A |
| 30%   61C    P2            178W /  200W |    6582MiB /  12282MiB |     98%      Default |
+-----------------------------------------------------------------------------------------+
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|    0   N/A  N/A      1234    C+G   C:\\Windows\\explorer.exe                     N/A      |
|    0   N/A  N/A     35811      C   ...iniconda3\\envs\\ml\\python.exe             N/A      |
+-----------------------------------------------------------------------------------------+
"""


def test_windows_tells_no_process_but_the_whole_card() -> None:
    seen = read_nvidia_smi(WINDOWS)
    assert seen == DriverFigures(
        used_bytes=6582 * 2**20, total_bytes=12282 * 2**20, card_name="NVIDIA GeForce RTX 4070"
    )
    assert seen.other_bytes is None
    assert seen.place
    assert seen.place.card.name == "GeForce RTX 4070"
    assert read_nvidia_smi("pid, process_name, used_gpu_memory [MiB]\n35811, python.exe, [N/A]\n") is None


def test_the_card_of_the_text_is_the_place_with_what_others_hold() -> None:
    seen = read_nvidia_smi(TABLE)
    assert seen
    place = seen.place
    assert place
    assert (place.card.name, place.card.vram_bytes) == ("GeForce RTX 4070", 12282 * 2**20)
    assert place.other_bytes == seen.other_bytes
    assert place.card.context_bytes > 0


@pytest.mark.parametrize(
    ("name", "mib", "meant"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "GeForce RTX 4060 Ti 16 GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "GeForce RTX 4060 Ti 8 GB"),
        ("NVIDIA GeForce RTX 409...", 24564, "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4070 ...", 12282, None),  # Ti or SUPER, nobody knows
        ("NVIDIA GeForce RTX 4070", 8188, None),  # no such card
        ("NVIDIA Voodoo 5", 12282, None),
        ("...", 12282, None),
        ("", 12282, None),
    ],
)
def test_only_one_card_of_that_name_and_size_is_taken(name: str, mib: int, meant: str | None) -> None:
    place = DriverFigures(process_bytes=1, total_bytes=mib * 2**20, card_name=name).place
    assert (place.card.name if place else None) == meant
