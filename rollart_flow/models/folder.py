"""Reading and writing of a policy's weights, config and tokenizer as a Hugging Face folder.

A folder written here loads in transformers (`AutoModelForCausalLM`, `AutoTokenizer`), vLLM and
Megatron bridges. Invariant: a folder under its final name is complete, since it is filled under a
temporary name, flushed to disk and renamed. Reading refuses every architecture whose arithmetic is
not exactly that of `models.qwen3`, with a one-line error.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.models.architectures import DENSE, MIXTURE
from rollart_flow.models.feed_forward import Experts
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.validation import check_file_name

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def save_folder(
    folder: str | Path,
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor],
    tokenizer: Mapping[str, str],
) -> None:
    """Write a new folder atomically; equal arguments give equal bytes.

    Args:
        folder: path of the new folder, which must not exist.
        config: shape of the model.
        tensors: weights in Hugging Face names, all of one dtype.
        tokenizer: files of the tokenizer by name, as `tokenizer.tokenizer_files` returns them.

    Raises:
        SettingsError: the folder exists.
        WeightsError: names or shapes do not match the config.
        OSError: the folder cannot be written.
    """
    target = Path(folder)
    if target.exists():
        raise SettingsError(f"{str(folder)!r} exists; give a new folder for the model")
    check_tensors(config, tensors)
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.parent / f".{target.name}-{uuid4().hex}"
    hidden.mkdir()
    try:
        copies = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        save_file(copies, hidden / _WEIGHTS, metadata={"format": "pt"})
        texts = {**tokenizer, **_config_files(config, next(iter(copies.values())).dtype)}
        for name, text in texts.items():
            (hidden / name).write_text(text, encoding="utf-8")
        for path in (*hidden.iterdir(), hidden):
            _flush(path)
        hidden.rename(target)
        _flush(target.parent)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def load_folder(folder: str | Path) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Return the config and weights of a folder, in the dtype that they are stored in.

    Raises:
        SettingsError: there is no model, or one of another architecture.
        WeightsError: the weights are damaged or do not match the config.
    """
    place = Path(folder)
    config = read_config(place)
    tensors: dict[str, torch.Tensor] = {}
    for name in _weight_files(place):
        try:
            with safe_open(place / name, framework="pt") as file:
                tensors.update((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{name} in {str(folder)!r} cannot be read: {error}") from error
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)  # some tools write the tied copy too
    check_tensors(config, tensors)
    return config, tensors


def read_config(folder: str | Path) -> ModelConfig:
    """Return the shape of the model in a folder.

    Raises:
        SettingsError: there is no config.json, or its architecture is not that of `models.qwen3`.
    """
    path = Path(folder) / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"no config.json in {str(folder)!r}; is it a model?") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{str(path)!r} is damaged: {error}") from error
    _check_architecture(values, path)
    rope = values.get("rope_parameters") or {}
    found = _fields(ModelConfig, values)
    if "rope_theta" in rope:
        found["rope_theta"] = rope["rope_theta"]
    if isinstance(found.get("eos_token_id"), list):
        found["eos_token_id"] = found["eos_token_id"][0]
    # Fields missing in config.json have the default of transformers, which can differ from ours.
    found.setdefault("tie_word_embeddings", False)
    found.setdefault("rope_theta", 10000.0)
    try:
        if values["architectures"] == [MIXTURE]:
            found["experts"] = _experts(values)
        return ModelConfig(**found)
    except TypeError as error:
        raise SettingsError(f"{str(path)!r} lacks a field: {error}") from error


def check_tensors(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights that do not match the config exactly.

    Raises:
        WeightsError: a tensor is missing, unknown, of a wrong shape or not of floating point.
    """
    with torch.device("meta"), _Uninitialized():
        wanted = Qwen3(config).state_dict()
    for name in wanted.keys() - tensors.keys():
        raise WeightsError(f"weights lack {name!r}")
    for name in tensors.keys() - wanted.keys():
        raise WeightsError(f"weights hold {name!r}, which the model does not have")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or not tensor.is_floating_point():
            raise WeightsError(
                f"{name!r} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"the model needs floating point {tuple(wanted[name].shape)}"
            )


class _Uninitialized(TorchFunctionMode):
    """Mode under which new layers keep the contents of their tensors.

    Random values for tensors without storage would load torch's compiler, which takes a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            return args[0] if args else named["tensor"]
        return func(*args, **named)


def _check_architecture(values: Mapping[str, Any], path: Path) -> None:
    found = values.get("architectures")
    if found not in ([DENSE], [MIXTURE]):
        raise SettingsError(
            f"{str(path)!r} has architectures {found}; supported is {DENSE} or {MIXTURE}"
        )
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    for name, value, wanted in (
        ("hidden_act", values.get("hidden_act", "silu"), "silu"),
        ("attention_bias", values.get("attention_bias", False), False),
        ("use_sliding_window", values.get("use_sliding_window", False), False),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), "default"),
    ):
        if value != wanted:
            raise SettingsError(f"{str(path)!r} has {name} {value!r}; supported is {wanted!r}")


def _fields(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values given for the fields of a dataclass."""
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def _experts(values: Mapping[str, Any]) -> Experts:
    """Return the experts settings; transformers and model folders use different field names."""
    said = _fields(Experts, values)
    said.setdefault("num_experts", values.get("num_local_experts"))
    if said.get("mlp_only_layers") is None:
        said["mlp_only_layers"] = ()
    return Experts(**{name: value for name, value in said.items() if value is not None})


def _config_files(config: ModelConfig, dtype: torch.dtype) -> dict[str, str]:
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model = {
        **config.as_json(),
        "architectures": [DENSE if config.experts is None else MIXTURE],
        "model_type": "qwen3" if config.experts is None else "qwen3_moe",
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "dtype": str(dtype).removeprefix("torch."),
    }
    return {
        "config.json": json.dumps(model, indent=2, sort_keys=True),
        "generation_config.json": json.dumps(ids, indent=2, sort_keys=True),
    }


def _weight_files(place: Path) -> Iterable[str]:
    if (place / _WEIGHTS).is_file():
        return (_WEIGHTS,)
    try:
        index = json.loads((place / _INDEX).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
        for name in names:
            check_file_name(name)
        return names
    except FileNotFoundError as error:
        raise SettingsError(f"no {_WEIGHTS} in {str(place)!r}; is it a model?") from error
    except (ValueError, KeyError) as error:
        raise WeightsError(f"{_INDEX} in {str(place)!r} is damaged: {error}") from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
