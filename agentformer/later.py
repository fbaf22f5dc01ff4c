"""What is had when it is first used: libraries that are imported then, and attributes that are made then."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class Later:
    """Stands for a module and imports it when something of it is first asked for. Thread-safe, as importing is.

    What was asked for is kept, so that later uses cost what those of a module cost. For type checkers the real module
    is imported under `TYPE_CHECKING`. Raises what importing raises.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["_later"] = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__dict__["_later"]), attribute)
        self.__dict__[attribute] = value
        return value

    def __repr__(self) -> str:
        return f"<{self.__dict__['_later']}, imported at its first use>"


class Made(Generic[T]):
    """An attribute that is made when it is first asked for: once for each object, also by many threads at once.

    The object has an attribute `_making`, a lock that one thread may take repeatedly. What `make` raises is raised, and
    the next one who asks tries again.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, made: None, owner: type) -> Self: ...

    @overload
    def __get__(self, made: object, owner: type) -> T: ...

    def __get__(self, made: Any, owner: type) -> Self | T:
        if made is None:
            return self
        with made._making:
            if self._name not in vars(made):
                vars(made)[self._name] = self._make(made)  # found there from now on, and not here
        found: T = vars(made)[self._name]
        return found

    def made(self, whose: object) -> bool:
        """Has it been made already?"""
        return self._name in vars(whose)
