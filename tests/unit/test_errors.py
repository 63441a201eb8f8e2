"""The drawn tree of errors is the real one: names, parents, HTTP status and code."""

import re

from strata import errors

LINE = re.compile(r"^( {4,})(\w+) +(\d{3}) (\w+)", re.MULTILINE)


def drawn() -> dict[str, tuple[str | None, int, str]]:
    """Class name -> parent's name, status, code, by indentation in the module's docstring."""
    found: dict[str, tuple[str | None, int, str]] = {}
    path: list[str] = []
    for indent, name, status, code in LINE.findall(errors.__doc__):
        depth = (len(indent) - 4) // 2
        path[depth:] = [name]
        found[name] = (path[depth - 1] if depth else None, int(status), code)
    return found


def test_the_drawing_is_true():
    real = {
        name: (kind.__base__.__name__ if kind is not errors.StrataError else None, kind.http_status, kind.code)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.StrataError)
    }
    assert drawn() == real
    assert len({code for _, _, code in real.values()}) == len(real), "a code names one class"


def test_what_errors_carry():
    assert errors.Overloaded("full", 2.5).retry_after_s == 2.5
    error = errors.OutOfDeviceMemory(-3, "model_open", "no room for 8 GiB")
    assert (error.status, error.where, error.message) == (-3, "model_open", "no room for 8 GiB")
    assert str(error) == "model_open: no room for 8 GiB (status -3)"
