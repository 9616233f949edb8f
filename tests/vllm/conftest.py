"""vLLM warns while it is imported; that is neither ours to mend nor a reason to fail."""

import contextlib
import importlib
import warnings

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")
    importlib.import_module("vllm.v1.worker.gpu_input_batch")
