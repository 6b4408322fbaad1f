"""The operators inside transformers models: patch, generate with a cache, save, load.

    >>> model = AutoModelForCausalLM.from_pretrained("gpt2")
    >>> chacal.hf.patch(model, "chacal,gamma=learn", layers=[1])
    >>> optimizer = torch.optim.AdamW(chacal.hf.parameter_groups(model, lr=2e-4))

Importing this registers the classes that load what a patched model saved. It needs the extra
`hf`; nothing else in chacal imports it.
"""

from chacal.hf._extra import MissingExtra
from chacal.hf.cache import OperatorLayer, new_cache
from chacal.hf.decoders import PROTOCOLS
from chacal.hf.gammas import Gammas, gammas
from chacal.hf.models import (
    ChaCALBartForConditionalGeneration,
    ChaCALGPT2LMHeadModel,
    ChaCALLlamaForCausalLM,
)
from chacal.hf.patch import operators_of, patch, unpatch
from chacal.hf.static import StaticOperatorLayer
from chacal.nn.gamma import parameter_groups

__all__ = [
    "PROTOCOLS",
    "ChaCALBartForConditionalGeneration",
    "ChaCALGPT2LMHeadModel",
    "ChaCALLlamaForCausalLM",
    "Gammas",
    "MissingExtra",
    "OperatorLayer",
    "StaticOperatorLayer",
    "gammas",
    "new_cache",
    "operators_of",
    "parameter_groups",
    "patch",
    "unpatch",
]
