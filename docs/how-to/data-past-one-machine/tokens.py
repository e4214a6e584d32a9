"""FineWeb as tokens that `onecard train --dataset=data/fineweb` reads, on as many processes or machines as there are.

    pip install "datatrove[io,processing]"
    python tokens.py hf://datasets/HuggingFaceFW/fineweb/sample/10BT data/fineweb --tasks 15
    python tokens.py /disk/parquet /disk/fineweb --tasks 1000 --slurm cpu     # one job a task, 200 at a time

Each task reads its share of the parquet files and writes one file of tokens; use no more tasks than there are files.
The same command again does only the tasks that have not ended.
"""

import argparse
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main() -> None:
    options = parsed()
    pipeline = [
        ParquetReader(options.source, text_key=options.column, glob_pattern="**/*.parquet"),
        DocumentTokenizer(
            options.out,
            tokenizer_name_or_path=options.tokenizer,
            eos_token="<|endoftext|>",  # after each document, as `onecard data prepare` has it
            shuffle_documents=not options.in_order,
            seed=1,
        ),
    ]
    logs = str(Path(options.out).with_name(Path(options.out).name + "-logs"))
    if options.slurm:
        executor = SlurmPipelineExecutor(
            pipeline,
            tasks=options.tasks,
            time="12:00:00",
            partition=options.slurm,
            workers=200,
            cpus_per_task=1,
            mem_per_cpu_gb=4,
            job_name="tokens",
            logging_dir=logs,
        )
    else:
        executor = LocalPipelineExecutor(pipeline, tasks=options.tasks, workers=options.workers, logging_dir=logs)
    executor.run()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", help="a folder of parquet files, here or on the hub")
    parser.add_argument("out", help="the folder for the tokens")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--workers", type=int, default=-1, help="tasks at a time on this machine; all by default")
    parser.add_argument("--tokenizer", default="gpt2", help="a name on the hub, or the path of a tokenizer.json")
    parser.add_argument("--column", default="text")
    parser.add_argument("--in-order", action="store_true", help="keep the order of the documents")
    parser.add_argument("--slurm", metavar="PARTITION", help="give the tasks to Slurm instead")
    return parser.parse_args()


if __name__ == "__main__":  # each task is a process that imports this file
    main()
