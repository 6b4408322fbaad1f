"""What is saved patched is loaded patched, bit for bit, or not at all."""

import json
import logging
import pickle
import subprocess
import sys

import pytest
import torch
from tiny import CAUSAL_LM, EXACT, KINDS, far, inputs_of, tiny
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
)

from chacal.hf import (
    ChaCALBartForConditionalGeneration,
    ChaCALGPT2LMHeadModel,
    ChaCALLlamaForCausalLM,
    operators_of,
    patch,
    unpatch,
)
from chacal.hf.config import extended
from chacal.hf.models import HEADS, MODELS, made_for

kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def quiet():
    """Progress bars and advice of transformers would fill the report."""
    logging.getLogger("transformers").setLevel(logging.ERROR)


def auto(kind):
    return AutoModelForSeq2SeqLM if kind == "bart" else AutoModelForCausalLM


@kinds
def test_a_patched_model_comes_back(kind, tmp_path):
    model, inputs = tiny(kind), inputs_of(kind)
    patch(patch(model, "chacal,gamma=0.7", layers=[1]), "window@5", layers=[2])
    expected = model(**inputs).logits
    model.save_pretrained(tmp_path)
    loaded = auto(kind).from_pretrained(tmp_path).eval()
    assert type(loaded).__name__ == f"ChaCAL{KINDS[kind][0].__name__}"
    assert {i: str(op) for i, op in operators_of(loaded).items()} == {
        1: "chacal,gamma=0.7", 2: "window@5",
    }  # fmt: skip
    assert loaded.dtype == torch.float64
    assert torch.equal(loaded(**inputs).logits, expected)
    assert loaded.config.to_dict() == {
        **model.config.to_dict(), "_name_or_path": str(tmp_path),
    }  # fmt: skip
    # once more, now from our own class
    loaded.save_pretrained(tmp_path / "again")
    again = auto(kind).from_pretrained(tmp_path / "again").eval()
    assert torch.equal(again(**inputs).logits, expected)


@kinds
def test_the_stock_class_does_not_load_it_as_dense(kind, tmp_path):
    patch(tiny(kind), "chacal", layers=[2]).save_pretrained(tmp_path)
    with pytest.raises(Exception, match=r"layer_types.*chacal"):
        KINDS[kind][0].from_pretrained(tmp_path)


@kinds
def test_an_unpatched_model_is_saved_as_it_was(kind, tmp_path):
    model, inputs = tiny(kind), inputs_of(kind)
    dense = model(**inputs).logits
    unpatch(patch(model, "chacal")).save_pretrained(tmp_path)
    assert "chacal" not in (tmp_path / "config.json").read_text()
    loaded = auto(kind).from_pretrained(tmp_path).eval()
    assert type(loaded) is KINDS[kind][0]
    assert torch.equal(loaded(**inputs).logits, dense)


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("gpt2", ChaCALGPT2LMHeadModel),
        ("llama", ChaCALLlamaForCausalLM),
        ("bart", ChaCALBartForConditionalGeneration),
    ],
)
def test_a_plain_checkpoint_loads_into_our_class(kind, cls, tmp_path, caplog):
    model, inputs = tiny(kind), inputs_of(kind)
    model.save_pretrained(tmp_path)
    logger = logging.getLogger("transformers")  # which does not propagate
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.WARNING)
    KINDS["mistral"][1].from_pretrained(tmp_path)
    assert "You are using a model of type" in caplog.text
    caplog.clear()
    loaded = cls.from_pretrained(tmp_path, chacal_operators={"1": "chacal"}).eval()
    logger.removeHandler(caplog.handler)
    assert "You are using a model of type" not in caplog.text
    assert torch.equal(loaded(**inputs).logits, patch(model, "chacal", layers=[1])(**inputs).logits)
    everywhere = cls.from_pretrained(tmp_path, chacal_operators="window@5").eval()
    assert [str(op) for op in operators_of(everywhere).values()] == ["window@5"] * 3
    with pytest.raises(ValueError, match=r"names no operator; expected chacal_operators"):
        cls.from_pretrained(tmp_path)


def test_a_fresh_model_is_made_from_a_config():
    stock = tiny("gpt2").config.to_dict() | {"model_type": "chacal_gpt2"}
    config = AutoConfig.for_model(**stock, chacal_operators={"0": "chacal"})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    assert type(model) is ChaCALGPT2LMHeadModel
    expected = patch(tiny("gpt2"), "chacal", layers=[0])(**inputs_of("gpt2")).logits
    # the same draws, but made in float32 by both
    assert far(model(**inputs_of("gpt2")).logits, expected) < EXACT


@pytest.mark.parametrize("kind", CAUSAL_LM)
def test_other_heads_come_back_too(kind, tmp_path):
    stock = {
        auto: auto._model_mapping[KINDS[kind][1]]
        for auto in HEADS
        if KINDS[kind][1] in auto._model_mapping
    }
    assert len(stock) == 5
    inputs = inputs_of(kind)
    for number, (loader, cls) in enumerate(stock.items()):
        model = patch(cls(tiny(kind).config).eval(), "chacal", layers=[1])
        model.save_pretrained(tmp_path / str(number))
        loaded = loader.from_pretrained(tmp_path / str(number)).eval()
        assert type(loaded).__name__ == f"ChaCAL{cls.__name__}"
        assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])


@kinds
def test_every_class_is_pickled_by_its_name(kind):
    config = extended(KINDS[kind][1])
    made = [config, *made_for(KINDS[kind][1]).values()]
    assert len(made) == 6
    for cls in made:
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cls is config or MODELS[cls.__name__] is cls


def test_a_class_is_made_when_it_is_asked_for():
    # in a process that has not met the architecture, as after unpickling
    code = (
        "import chacal.hf.config, chacal.hf.models as models\n"
        "assert not [name for name in models.MODELS if 'Olmo2' in name]\n"
        "print(models.ChaCALOlmo2ForCausalLM.config_class is chacal.hf.config.ChaCALOlmo2Config)\n"
        "for name in ('ChaCALNoSuchThing', 'Olmo2Config'):\n"
        "    assert not hasattr(models, name) and not hasattr(chacal.hf.config, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_classifier_of_a_language_model_keeps_its_operators(tmp_path):
    # as in fine-tuning: the head is new, the patched layers are not
    patch(tiny("gpt2"), "chacal", layers=[1]).save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert isinstance(classifier, GPT2ForSequenceClassification)
    assert list(operators_of(classifier)) == [1]


def test_leaking_operators_are_remembered_as_asked_for(tmp_path):
    model = patch(tiny("gpt2"), "block@4,rows=mean", allow_leak=True)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**inputs_of("gpt2")).logits, model(**inputs_of("gpt2")).logits)
    unpatch(model).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"sees later tokens.*chacal_allow_leak=True"):
        ChaCALGPT2LMHeadModel.from_pretrained(tmp_path, chacal_operators="block@4,rows=mean")


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ({"7": "chacal"}, "layer 7 does not exist"),
        ({"1": "chacl"}, "did you mean 'chacal'"),
        ({"encoder": "chacal"}, "expected operators by layer"),
    ],
)
def test_a_config_that_makes_no_sense_says_why(operators, message, tmp_path):
    patch(tiny("gpt2"), "chacal").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chacal_operators": operators}))
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_our_class_does_not_take_a_stock_config():
    with pytest.raises(ValueError, match="names no operator"):
        ChaCALGPT2LMHeadModel(tiny("gpt2").config)
    assert not isinstance(tiny("gpt2"), ChaCALGPT2LMHeadModel)
    assert issubclass(ChaCALGPT2LMHeadModel, GPT2LMHeadModel)


def test_operators_by_layer_are_checked_and_written_as_numbers(tmp_path):
    config = tiny("qwen2").config.to_dict() | {"model_type": "chacal_qwen2"}

    def made(operators):
        return AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config, chacal_operators=operators)
        )

    for wrong in ({"paper:code": "chacal"}, {"all": "chacal"}, {"1": 3}, ["chacal"]):
        with pytest.raises(
            ValueError, match=r"chacal_operators is .*; expected operators by layer"
        ):
            made(wrong)
    with pytest.raises(ValueError, match="layer 7 does not exist; expected layers from 0 to 2"):
        made({7: "chacal"})
    model = made({1: "chacal"})
    assert model.config.chacal_operators == {"1": "chacal"}
    model.save_pretrained(tmp_path)
    with pytest.raises(Exception, match=r"layer_types.*chacal"):
        KINDS["qwen2"][0].from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "bart", "qwen2"])
def test_a_config_alone_marks_its_layers(kind, tmp_path):
    tiny(kind).save_pretrained(tmp_path)
    stock = tiny(kind).config.to_dict() | {"model_type": f"chacal_{kind}"}
    AutoConfig.for_model(**stock, chacal_operators="chacal").save_pretrained(tmp_path)
    with pytest.raises(Exception, match=r"layer_types.*chacal"):
        KINDS[kind][0].from_pretrained(tmp_path)
    assert len(operators_of(auto(kind).from_pretrained(tmp_path))) == 3


def test_what_was_saved_before_an_option_was_added_means_what_it_meant(tmp_path):
    model = patch(tiny("llama"), "block@4,values=rows", layers=[1])
    inputs = inputs_of("llama")
    expected = model(**inputs).logits
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    assert saved["chacal_operators"] == {"1": "block@4,values=rows"}
    # as a version without `values` wrote it
    file.write_text(json.dumps({**saved, "chacal_operators": {"1": "block@4"}}))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert str(operators_of(loaded)[1]) == "block@4,values=rows"
    assert torch.equal(loaded(**inputs).logits, expected)
    # the default of today is told in what is saved today
    other = patch(tiny("llama"), "block@4", layers=[1])
    assert other.config.chacal_operators == {"1": "block@4,values=mean"}
