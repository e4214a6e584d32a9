"""How fast `onecard data prepare` is beside tiktoken alone on the same cores, and how much memory it takes.

    python bench/data_throughput.py --ranks r50k_base.tiktoken --megabytes 300 --repeats 3
    python bench/data_throughput.py --ranks r50k_base.tiktoken --file sample.jsonl.zst
    python bench/data_throughput.py --ranks r50k_base.tiktoken --prepare parquet/

The second takes a file of yours. It, and the end of the first, compare processor times in one process, block by block
in turn: tiktoken's encode_ordinary alone against everything onecard does for the block (reading, JSON, checks, hash,
tokens, and the way to a worker and back). This is valid on a busy machine too, but leaves out start-up and writing.

The third is the command as typed, on a source of yours: documents and tokens a second of processor time, which is what
one core that does nothing else makes.

The first makes a file of JSON lines from this Python's standard library. Each document is numbered, so none occurs
twice. It times these in turn, so a busy machine slows all of them alike:

- raw: one process per core, with its documents in memory, that calls only tiktoken's encode_ordinary on each;
- threads: tiktoken's own encode_ordinary_batch with one thread per core;
- onecard: `onecard data prepare` as a user types it, from the file to checked shards, start-up included.

Memory is the sum of the proportional set sizes of the command and all its processes, sampled ten times a second, and
processor time the sum of theirs (Linux).
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from onecard.data.blocks import DocumentBlock, read_blocks
from onecard.data.downloads import Fetcher
from onecard.data.encode import Encoding, encode_block
from onecard.data.sources import local_source
from onecard.data.stdlib import source_files
from onecard.data.tokenizer_files import keep_tokenizer
from onecard.data.tokenizers import Gpt2Tokenizer


def documents(size_bytes: int) -> list[str]:
    """Different texts, of this many bytes in all."""
    root = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_bytes().decode("utf-8", "replace") for _, path, _ in source_files(root)]
    found: list[str] = []
    while size_bytes > 0:
        for text in texts:
            found.append(f"# {len(found)}\n{text}")
            size_bytes -= len(text.encode())
            if size_bytes <= 0:
                break
    return found


def encode_share(ranks: bytes, share: list[str], ready: multiprocessing.Barrier, counts: multiprocessing.Queue) -> None:
    encoding = Gpt2Tokenizer(ranks)._encoding
    encoding.encode_ordinary("ready")
    ready.wait()
    started = time.process_time()
    for text in share:
        encoding.encode_ordinary(text)
    counts.put(time.process_time() - started)


def raw_seconds(ranks: bytes, texts: list[str], *, cores: int) -> tuple[float, float]:
    """Seconds until the slowest of one process per core has encoded its part, and the processor seconds of all."""
    context = multiprocessing.get_context("fork")
    ready, counts = context.Barrier(cores + 1), context.Queue()
    shares = [texts[number::cores] for number in range(cores)]
    processes = [context.Process(target=encode_share, args=(ranks, share, ready, counts)) for share in shares]
    for process in processes:
        process.start()
    ready.wait()
    started = time.perf_counter()
    busy = sum(counts.get() for _ in processes)
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    return seconds, busy


def thread_seconds(ranks: bytes, texts: list[str], *, cores: int) -> float:
    encoding = Gpt2Tokenizer(ranks)._encoding
    encoding.encode_ordinary("ready")
    started = time.perf_counter()
    for first in range(0, len(texts), 1000):  # all at once would hold every token as a Python object
        encoding.encode_ordinary_batch(texts[first : first + 1000], num_threads=cores)
    return time.perf_counter() - started


def memory_and_time(group: int) -> tuple[int, dict[str, float]]:
    """Bytes of all processes of a group, with shared pages counted once, and the processor seconds of each."""
    total, seconds = 0, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getpgid(int(folder.name)) == group:
                    total += 1024 * int((folder / "smaps_rollup").read_text().split("Pss:")[1].split()[0])
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    seconds[folder.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except (OSError, IndexError):
                continue
    return total, seconds


def onecard_seconds(ranks: Path, file: Path, out: Path, *, cores: int) -> tuple[float, float, dict[str, Any], int]:
    """Seconds on the clock and of processors, the answer and the peak bytes of the command."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "onecard", "data", "prepare", str(file), "--out", str(out), "--json"]
    command += ["--ranks", str(ranks), "--workers", str(cores)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    peak, busy = 0, dict[str, float]()
    while process.poll() is None:
        used, times = memory_and_time(process.pid)
        peak, busy = max(peak, used), busy | times
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    assert process.stdout is not None
    return seconds, sum(busy.values()), json.loads(process.stdout.read()), peak


def rates(ranks: Path, source: Path, *, cores: int) -> dict[str, float]:
    """What the command makes of a source in a second of processor time."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, busy, answer, _ = onecard_seconds(ranks, source, Path(folder, "out"), cores=cores)
    documents = sum(answer["documents"][split] for split in ("train", "val"))
    return {
        "documents": documents,
        "tokens": answer["new_tokens"],
        "clock_seconds": round(seconds, 1),
        "processor_seconds": round(busy, 1),
        "documents_per_core_second": round(documents / busy),
        "tokens_per_core_second": round(answer["new_tokens"] / busy),
    }


def share_by_block(ranks: bytes, file: Path) -> dict[str, float]:
    """Processor seconds for the blocks of a file, by tiktoken alone and by onecard, and their ratio."""
    tokenizer = Gpt2Tokenizer(ranks)
    raw = tokenizer._encoding.encode_ordinary
    source = local_source([str(file)], but=file.with_suffix(".out"))
    assert source is not None
    spent = {"raw": 0.0, "onecard": 0.0}
    with tempfile.TemporaryDirectory() as name:
        said = keep_tokenizer(tokenizer, Path(name))
        how = Encoding(folder=Path(name), said=said, column="text", end_first=False).opened()
        warm = DocumentBlock([b'{"text": "ready"}'], [(0, 0)], is_json=True, disk_bytes=0)
        encode_block(warm, how)

        def onecard(block: DocumentBlock) -> None:
            started = time.process_time()
            encoded = encode_block(pickle.loads(pickle.dumps(block)), how)
            pickle.loads(pickle.dumps(encoded))
            spent["onecard"] += time.process_time() - started

        def alone(block: DocumentBlock) -> None:
            texts = [json.loads(line)["text"] if block.is_json else line.decode() for line in block.documents]
            started = time.process_time()
            for text in texts:
                raw(text)
            spent["raw"] += time.process_time() - started

        blocks = read_blocks(source, (0, 0), column="text", fetcher=Fetcher(None))
        for number in itertools.count():
            started = time.process_time()
            block = next(blocks, None)
            spent["onecard"] += time.process_time() - started
            if block is None:
                break
            for measure in (onecard, alone) if number % 2 else (alone, onecard):  # the second finds warm caches
                measure(block)
    return {name: round(value, 2) for name, value in spent.items()} | {
        "share": round(spent["raw"] / spent["onecard"], 3)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=Path, required=True)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    ranks = options.ranks.read_bytes()
    if options.file:
        for _ in range(options.repeats):
            print(json.dumps(share_by_block(ranks, options.file)), flush=True)
        return
    if options.prepare:
        for _ in range(options.repeats):
            print(json.dumps(rates(options.ranks, options.prepare, cores=options.cores)), flush=True)
        return
    texts = documents(options.megabytes * 10**6)
    size_bytes = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "documents.jsonl"), Path(folder, "out")
        with file.open("w") as lines:
            lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        rows = []
        for _ in range(options.repeats):
            raw, raw_busy = raw_seconds(ranks, texts, cores=options.cores)
            threads = thread_seconds(ranks, texts, cores=options.cores)
            seconds, busy, answer, peak = onecard_seconds(options.ranks, file, out, cores=options.cores)
            tokens = answer["new_tokens"]
            times = {"raw": raw, "threads": threads, "onecard": seconds, "raw_busy": raw_busy, "onecard_busy": busy}
            rows.append({name: round(value, 2) for name, value in times.items()} | {"peak_bytes": peak})
            print(json.dumps(rows[-1]), flush=True)
        by_block = share_by_block(ranks, file)
    shown = {
        "documents": len(texts),
        "text_bytes": size_bytes,
        "tokens": tokens,
        "cores": options.cores,
        "raw_tokens_per_second": round(tokens / median(row["raw"] for row in rows)),
        "threads_tokens_per_second": round(tokens / median(row["threads"] for row in rows)),
        "onecard_tokens_per_second": round(tokens / median(row["onecard"] for row in rows)),
        "share_of_raw": round(median(row["raw"] / row["onecard"] for row in rows), 3),
        "share_of_raw_by_processor_time": round(median(row["raw_busy"] / row["onecard_busy"] for row in rows), 3),
        "share_of_raw_by_block": by_block["share"],
        "peak_bytes": max(row["peak_bytes"] for row in rows),
    }
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
