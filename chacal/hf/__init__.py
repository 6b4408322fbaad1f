"""The operators inside transformers models: patch, generate with a cache, save, load.

    >>> model = chacal.hf.patch(AutoModelForCausalLM.from_pretrained("gpt2"), "chacal", layers=[1])

Importing this registers the classes that load what a patched model saved. It needs the extra
`hf`; nothing else in chacal imports it.
"""

from chacal.hf._extra import MissingExtra
from chacal.hf.cache import OperatorLayer, new_cache
from chacal.hf.decoders import PROTOCOLS
from chacal.hf.models import (
    ChaCALBartForConditionalGeneration,
    ChaCALGPT2LMHeadModel,
    ChaCALLlamaForCausalLM,
)
from chacal.hf.patch import operators_of, patch, unpatch

__all__ = [
    "PROTOCOLS",
    "ChaCALBartForConditionalGeneration",
    "ChaCALGPT2LMHeadModel",
    "ChaCALLlamaForCausalLM",
    "MissingExtra",
    "OperatorLayer",
    "new_cache",
    "operators_of",
    "patch",
    "unpatch",
]
