"""Reading and writing of a policy's weights, config and tokenizer as a Hugging Face folder.

A folder written here loads in transformers (`AutoModelForCausalLM`, `AutoTokenizer`), vLLM and
Megatron bridges. Invariant: a folder under its final name is complete, since it is filled under a
temporary name, flushed to disk and renamed. An architecture whose arithmetic is not exactly that of
`models.qwen3` is left to transformers, and one that neither implements is refused in one line.
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
from rollart_flow.models.architectures import (
    AUTO,
    MIXTURE,
    PROCESSOR_FILES,
    TRANSFORMERS,
    not_implemented,
)
from rollart_flow.models.feed_forward import Experts
from rollart_flow.models.language_model import ModelShape
from rollart_flow.models.pictures import processor_text
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.validation import check_file_name

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def save_folder(
    folder: str | Path,
    config: ModelShape,
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
        texts = {**tokenizer, **config.files(next(iter(copies.values())).dtype)}
        for name, text in texts.items():
            (hidden / name).write_text(text, encoding="utf-8")
        for path in (*hidden.iterdir(), hidden):
            _flush(path)
        hidden.rename(target)
        _flush(target.parent)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def load_folder(
    folder: str | Path, implementation: str = AUTO
) -> tuple[ModelShape, dict[str, torch.Tensor]]:
    """Return the config and weights of a folder, in the dtype that they are stored in.

    Args: those of `read_config`.

    Raises:
        SettingsError: there is no model, or one of an unknown architecture.
        MissingExtraError: the model needs transformers, which is not installed.
        WeightsError: the weights are damaged or do not match the config.
    """
    place = Path(folder)
    config = read_config(place, implementation)
    tensors: dict[str, torch.Tensor] = {}
    for name in _weight_files(place):
        try:
            with safe_open(place / name, framework="pt") as file:
                tensors.update((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{name} in {str(folder)!r} cannot be read: {error}") from error
    if isinstance(config, ModelConfig) and config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)  # some tools write the tied copy too
    check_tensors(config, tensors)
    return config, tensors


def load_pretrained(folder: str | Path) -> tuple[ModelShape, dict[str, torch.Tensor]]:
    """Return the config and weights of a folder that another program wrote; see `load_folder`."""
    from rollart_flow.models.hf.config import TransformersConfig

    config = read_config(folder)
    if not isinstance(config, TransformersConfig):
        return load_folder(folder)
    from rollart_flow.models.hf.pretrained import read_pretrained

    return config, read_pretrained(Path(folder), config)


def read_config(folder: str | Path, implementation: str = AUTO) -> ModelShape:
    """Return the shape of the model in a folder.

    Args:
        folder: a Hugging Face folder.
        implementation: "transformers" for a model that transformers computes, or "auto" for this
            library's own where it implements the architecture.

    Raises:
        SettingsError: there is no config.json, or transformers does not know its architecture.
        MissingExtraError: the model needs transformers, which is not installed.
    """
    path = Path(folder) / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"no config.json in {str(folder)!r}; is it a model?") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{str(path)!r} is damaged: {error}") from error
    if implementation == TRANSFORMERS or not_implemented(values) is not None:
        return _of_transformers(values, path)
    return _of_this_library(values, path)


def _of_transformers(values: dict[str, Any], path: Path) -> ModelShape:
    from rollart_flow.models.hf.config import TransformersConfig

    beside = path.parent / "generation_config.json"
    generation = beside.read_text(encoding="utf-8") if beside.is_file() else "{}"
    there = (path.parent / name for name in PROCESSOR_FILES)
    settings = {each.name: each.read_text(encoding="utf-8") for each in there if each.is_file()}
    try:
        return TransformersConfig.parse(values, generation, processor_text(settings))
    except SettingsError as error:
        raise SettingsError(f"{str(path)!r}: {error.message}") from error


def _of_this_library(values: Mapping[str, Any], path: Path) -> ModelConfig:
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


def check_tensors(config: ModelShape, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights that do not match the config exactly.

    Raises:
        WeightsError: a tensor is missing, unknown, of a wrong shape or not of floating point.
    """
    with torch.device("meta"), _Uninitialized():
        wanted = config.build().stored()
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
