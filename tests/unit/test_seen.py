"""nvidia-smi's table and CSV, read for one process and the whole card. Made in the shape of driver 570's output."""

from onecard.plan.seen import Seen, read_nvidia_smi

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
    assert seen == Seen(process_bytes=4464 * 2**20, used_bytes=6582 * 2**20, total_bytes=12282 * 2**20)
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
    assert seen == Seen(process_bytes=20500 * 2**20, used_bytes=21000 * 2**20, total_bytes=24576 * 2**20)
    assert seen.other_bytes == 500 * 2**20
    only_second = "".join(TWO_CARDS.splitlines(keepends=True)[6:])
    assert read_nvidia_smi(only_second) == seen
    nameless = "".join(line for line in TWO_CARDS.splitlines(keepends=True) if "NVIDIA" not in line)
    assert read_nvidia_smi(nameless) == seen  # counted
    process_alone = "".join(TWO_CARDS.splitlines(keepends=True)[-2:])
    assert read_nvidia_smi(process_alone) == Seen(process_bytes=20500 * 2**20)


def test_the_csv_gives_the_process() -> None:
    assert read_nvidia_smi("pid, process_name, used_gpu_memory [MiB]\n35811, python3, 4464 MiB\n") == Seen(
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
