"""The shapes in our signatures are checked: as `jaxtyping.jaxtyped` checks them, in less time.

That binds the arguments of every call and checks them twice, which took half of the time of a test that
trains. Here beartype checks the arguments and the result once each; names of sizes mean the same in both.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ForwardRef, get_args

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError, config
from jaxtyping._storage import pop_shape_memo, push_shape_memo

jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """From now on, modules of spaceform are imported with checks."""
    jaxtyping.jaxtyped = checked  # the import hook decorates with it
    jaxtyping.install_import_hook("spaceform", "beartype.beartype").__enter__()


def checked(thing: Any = None, *, typechecker: Any = beartype) -> Any:
    """A function, method or property that refuses wrong types and shapes; a class as the hook leaves it."""
    if thing is None:
        return partial(checked, typechecker=typechecker)
    if isinstance(thing, classmethod | staticmethod):
        return type(thing)(checked(thing.__func__))
    if isinstance(thing, property):
        parts = (thing.fget, thing.fset, thing.fdel)
        return property(*(part and checked(part) for part in parts))
    if inspect.isclass(thing):
        made = "__init__" in vars(thing) and not hasattr(thing.__init__, "__wrapped__")
        if dataclasses.is_dataclass(thing) and made:
            thing.__init__ = checked(thing.__init__)
        return thing
    return _function(thing, typechecker)


def _has_name(hint: Any) -> bool:
    return isinstance(hint, str | ForwardRef) or any(map(_has_name, get_args(hint)))


def _function(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    later = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    hints = list(function.__annotations__.values())
    by_argument = "{" in str(hints)  # "{self.num_classes} dim"
    by_name = any(map(_has_name, hints))  # of a class that may not be imported
    if by_argument or by_name or any(kind(function) for kind in later):
        return jaxtyped(function, typechecker=typechecker)
    guarded = beartype(function)
    if guarded is function:  # nothing is annotated
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        push_shape_memo({})
        try:
            return guarded(*args, **kwargs)
        except BeartypeCallHintViolation as error:
            raise TypeCheckError(str(error)) from None
        finally:
            pop_shape_memo()

    return call
