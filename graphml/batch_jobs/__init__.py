"""Batch jobs: a file of requests to a file of results, at full batch, which go on where they were killed.

`graphml.batch_jobs.run(model, "in.jsonl", "out.jsonl")` is `graphml batch`.
"""

from graphml.batch_jobs.job import BatchJob, BatchProgress, BatchSettings, BatchSummary, run
from graphml.batch_jobs.requests import BatchDefaults

__all__ = ["BatchDefaults", "BatchJob", "BatchProgress", "BatchSettings", "BatchSummary", "run"]
