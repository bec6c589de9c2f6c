"""Models of the messages, by which FastAPI checks requests, and describes requests and responses.

``logstore.protocol.messages`` declares each message once, as a Struct. This module makes pydantic's model of it with
the same names, bounds, defaults and descriptions. Only FastAPI sees the models: endpoints get and return messages.
"""

import base64
import functools
import types
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

from logstore.protocol.messages.base import Message, Query, Request


def _decoded(given: Any) -> bytes:
    if not isinstance(given, str):
        raise ValueError("is no text in base64")  # noqa: TRY004 - pydantic's
    return base64.b64decode(given, validate=True)


_BASE64: Final = Annotated[
    bytes, BeforeValidator(_decoded, json_schema_input_type=str), Field(json_schema_extra={"contentEncoding": "base64"})
]


@functools.cache
def model_of(message: type[Message]) -> type[BaseModel]:
    """Return the model of ``message``. It has the message's name, by which the description refers to it."""
    hints = get_type_hints(message, include_extras=True)
    fields = msgspec.structs.fields(message)
    if issubclass(message, Request):
        config = ConfigDict(strict=True, extra="forbid")
    else:
        # Responses have all fields, also those with defaults, unless a field may be UNSET.
        complete = all(field.default is not msgspec.UNSET for field in fields)
        config = ConfigDict(json_schema_serialization_defaults_required=complete)
    if message.examples:
        config["json_schema_extra"] = {"examples": [dict(example) for example in message.examples]}
    validators: dict[str, Any] = {}
    if issubclass(message, Request) and message.check is not Request.check:
        validators["check"] = model_validator(mode="after")(message.check)
    annotated: dict[str, Any] = {f.name: (modelled(hints[f.name], message), _default(f)) for f in fields}
    return create_model(
        message.__name__,
        __config__=config,
        __doc__=message.__doc__,
        __validators__=validators,
        **annotated,
    )


def modelled(annotation: Any, message: type[Message] = Message) -> Any:
    """Return the annotation with models in the place of messages; ``message`` is the one that it is from, if any."""
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return model_of(annotation)
    if annotation is bytes:
        return _BASE64 if issubclass(message, Request) else str
    if annotation is NoneType and issubclass(message, Query):
        # A parameter of a query may be left out, and the description does not say that it could be null.
        return SkipJsonSchema[None]  # type: ignore[misc]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        metas = (_field(meta) if isinstance(meta, msgspec.Meta) else meta for meta in args[1:])
        return Annotated[(modelled(args[0], message), *metas)]
    if origin in (Union, UnionType):
        return Union[tuple(modelled(arg, message) for arg in args if arg is not msgspec.UnsetType)]  # noqa: UP007
    if origin in (list, tuple):
        return types.GenericAlias(list, (modelled(args[0], message),))
    return annotation


def _field(meta: msgspec.Meta) -> Any:
    names = ("ge", "le", "min_length", "max_length", "description", "examples")
    given: dict[str, Any] = {name: getattr(meta, name) for name in names if getattr(meta, name) is not None}
    if meta.extra_json_schema is not None:
        given["json_schema_extra"] = meta.extra_json_schema
    return Field(**given)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    options: dict[str, Any] = {} if field.encode_name == field.name else {"alias": field.encode_name}
    if field.default_factory is not msgspec.NODEFAULT:
        return Field(default_factory=field.default_factory, **options)
    if field.default is msgspec.NODEFAULT:
        return Field(**options)
    return Field(None if field.default is msgspec.UNSET else field.default, **options)
