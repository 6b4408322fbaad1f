"""Without transformers, only that its absence is said can be tested (test_extra.py)."""

import importlib.util
import os

# nothing here may reach for the network
os.environ["HF_HUB_OFFLINE"] = "1"

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_hf_*.py"]
