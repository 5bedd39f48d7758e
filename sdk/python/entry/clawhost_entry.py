"""What the component calls: the author's class in `plugin.py`, behind a guard.

Whatever a function raises that is no error of the contract would end the instance, and the host would see nothing but
`unreachable`. Here it becomes the error `internal` with the exception and the lines that led to it.

`clawhost plugin build` puts the folder of this module first on Python's path, then the plugin's own folder.
"""

import plugin
from componentize_py_types import Err
from wit_world.imports import types

try:
    from wit_world.imports import log
except ImportError:  # the plugin's world does not import it
    log = None

# What the component calls, by the class that the author writes.
_METHODS = {
    "Judge": ("score_turn",),
    "GroupJudge": ("score_group",),
    "HintExtractor": ("extract",),
    "Loss": ("evaluate",),
    "Advantage": ("compute",),
}
# Those of them whose result cannot be an error.
_WITHOUT_ERROR = {"Loss": ("describe",)}

_ERRORS = (
    types.PluginError_Denied,
    types.PluginError_Internal,
    types.PluginError_InvalidInput,
    types.PluginError_Transient,
    types.PluginError_Unsupported,
)

# Characters of a report, and of one exception's own words in it. The host keeps 2 KiB.
_REPORT = 1500
_WORDS = 500
# Places that a report names from the start of a traceback, and from its end.
_FIRST, _LAST = 3, 9
# Exceptions that led to one another.
_CHAIN = 3
# Whose frames are not the author's.
_FOLDER = __file__.rpartition("/")[0] + "/"


class _Entry:
    """The functions of one of the author's classes."""

    def __init__(self, owner, guarded_methods, logged_methods):
        for name in guarded_methods:
            setattr(self, name, guarded(getattr(owner, name)))
        for name in logged_methods:
            setattr(self, name, _logged(getattr(owner, name)))


def __getattr__(name):
    """The class that the component instantiates, such as `Judge`."""
    methods = _METHODS.get(name)
    if methods is None:
        raise AttributeError(f"clawhost_entry has no {name}")
    made = getattr(plugin, name)
    return lambda: _Entry(made(), methods, _WITHOUT_ERROR.get(name, ()))


def guarded(function):
    """The function, whose exceptions are errors of the contract."""

    def call(*arguments):
        try:
            return function(*arguments)
        except BaseException as error:
            if _is_answer(error):
                raise
            raise Err(types.PluginError_Internal(_report(error))) from None

    return call


def _logged(function):
    """The function, whose exceptions are logged before they end the instance."""

    def call(*arguments):
        try:
            return function(*arguments)
        except BaseException as error:
            if log is not None:
                log.write(log.Level.ERROR, _report(error), [])
            raise

    return call


def _is_answer(error):
    """Whether it is an error of the contract, and not one of a host call that nobody caught."""
    return (
        type(error) is Err
        and isinstance(error.value, _ERRORS)
        and isinstance(error.value.value, str)
    )


def _report(error):
    """The exception, what it came from, and where: one line, because the host makes one of it.

    Nothing reads source text here: there are no files once the component runs.
    """
    parts = []
    while error is not None and len(parts) < _CHAIN:
        parts.append(_described(error))
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context
    return "; caused by ".join(parts)[:_REPORT]


def _described(error):
    try:
        words = str(error)
    except Exception:
        words = ""
    named = type(error).__name__
    said = f"{named}: {words[:_WORDS]}" if words else named
    places = _places(error.__traceback__)
    if not places:
        return said
    if len(places) > _FIRST + _LAST:
        skipped = len(places) - _FIRST - _LAST
        places[_FIRST:-_LAST] = [f"({skipped} more)"]
    return f"{said} (most recent call last: {', '.join(places)})"


def _places(traceback):
    """File, line and function of each frame, less those of this folder."""
    places = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_FOLDER):
            places.append(f"{_shown(code.co_filename)}:{traceback.tb_lineno} in {code.co_name}")
        traceback = traceback.tb_next
    return places


def _shown(path):
    """The path from its folder: each folder of Python's path has a number for a name."""
    parts = path.split("/", 2)
    return parts[2] if len(parts) == 3 and parts[1].isdigit() else path
