"""A module that ends every worker process which imports it, before that has read its job."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

if multiprocessing.current_process().name != "MainProcess":
    os._exit(7)


def work(job: Any, report: Any) -> None:
    pass
