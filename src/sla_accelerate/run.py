"""Runs a script with all its accelerators under the contract, and without a change in it.

    python -m sla_accelerate.run train.py --lr 0.1
    accelerate launch --config_file x.yaml -m sla_accelerate.run train.py --lr 0.1

The script sees what it would see alone: its arguments, ``__main__``, its folder first on the
path. Nothing heavy is imported before its first line.
"""

import builtins
import functools
import importlib.util
import io
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn

USAGE = "usage: python -m sla_accelerate.run [-m] SCRIPT [ARGUMENT ...]"

HOST = "accelerate.accelerator"
"""The module that has ``Accelerator``."""

TRAINERS = "transformers.trainer"
"""The module that has ``Trainer``."""


class Program(NamedTuple):
    """What is to be run."""

    read: Callable[[], CodeType]
    """Compiles it."""

    names: dict[str, Any]
    """What its ``__main__`` has before its first line."""

    argv: list[str]
    """Its arguments, itself included."""

    folder: str | None
    """What comes first on the path; None to leave it."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script or module that the command line names.

    Args:
        argv: The command line after the program's name; default that of this process.

    Raises:
        SystemExit: With 2 if nothing is named that can be run; whatever the script exits with.
    """
    program = find(list(sys.argv[1:] if argv is None else argv))
    for name, change in {HOST: attach_each, TRAINERS: tell_each}.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            sys.meta_path.insert(0, AtImport(name, change))
    # As Python itself has it: what the script leaves for its exit must find its names.
    script = ModuleType("__main__")
    script.__dict__.update(program.names)
    sys.modules["__main__"] = script
    sys.argv[:] = program.argv
    if program.folder is not None and not getattr(sys.flags, "safe_path", False):
        sys.path[0] = program.folder
    code = None
    try:
        code = program.read()
        exec(code, script.__dict__)  # noqa: S102 - what is asked for
    except BaseException:
        hide_frames_above(code)
        raise


def find(arguments: list[str]) -> Program:
    """Finds what the command line names.

    Raises:
        SystemExit: With 0 after a call for help, else with 2.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(f"{USAGE}\n")
        raise SystemExit(0)
    if arguments[:1] == ["-m"]:
        return _module(arguments[1:])
    if not arguments or arguments[0].startswith("-"):
        _refuse(f"needs a script to run, got {' '.join(arguments) or 'nothing'}; {USAGE}")
    path = Path(arguments[0])
    if not path.is_file():
        _refuse(f"there is no file {arguments[0]!r} in {Path.cwd()}; {USAGE}")
    file = str(path.absolute())
    loader = SourceFileLoader("__main__", file)
    names = {"__file__": file, "__loader__": loader, "__package__": None, "__spec__": None}
    return Program(
        functools.partial(_compile, file), _start(names), arguments, str(path.resolve().parent)
    )


def hide_frames_above(code: CodeType | None) -> None:
    """Shows the exception on its way out as if the script had been run alone.

    Args:
        code: The script's; None if there was none to run.
    """
    show = sys.excepthook

    def show_own(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        own = traceback
        while own is not None and own.tb_frame.f_code is not code:
            own = own.tb_next
        # The default one shows what the exception itself has.
        error.__traceback__ = own
        show(kind, error, own)

    sys.excepthook = show_own


def attach_each(module: Any) -> None:
    """Lets every accelerator be attached at the end of its construction, whoever makes it.

    Args:
        module: That of ``Accelerator``.
    """
    construct = module.Accelerator.__init__

    @functools.wraps(construct)
    def construct_and_attach(self: Any, *args: Any, **kwargs: Any) -> None:
        from sla_accelerate._attach import attach_unasked
        from sla_accelerate._wishes import listen

        launcher = listen()
        construct(self, *args, **kwargs)
        attach_unasked(self, launcher)

    module.Accelerator.__init__ = construct_and_attach


def tell_each(module: Any) -> None:
    """Gives every trainer the callback that knows how its loop, saves and resumes are made.

    Args:
        module: That of ``Trainer``.
    """
    usual = getattr(module, "DEFAULT_CALLBACKS", None)
    if usual is None:
        # Its accelerator is attached all the same.
        return
    from sla_accelerate.trainer_callback import UnaskedTrainerCallback

    module.DEFAULT_CALLBACKS = [*usual, UnaskedTrainerCallback]


class AtImport:
    """Hands a module over right after it was imported; a finder for ``sys.meta_path``."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Waits for it.

        Args:
            name: Of the module.
            then: Gets it, once.
        """
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """What the other finders find, with a loader that tells."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            loader.exec_module = execute_and_tell
        return spec


def _module(arguments: list[str]) -> Program:
    if not arguments:
        _refuse(f"-m needs the name of a module; {USAGE}")
    name = arguments[0]
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    if spec is None or spec.loader is None:
        _refuse(f"there is no module {name!r} that can be run; {USAGE}")
    loader: Any = spec.loader
    names = {"__file__": spec.origin, "__loader__": loader, "__package__": spec.parent}
    return Program(
        functools.partial(loader.get_code, spec.name),
        _start({**names, "__spec__": spec}),
        [str(spec.origin), *arguments[1:]],
        None,
    )


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # One above it; any other is the script's own trouble.
        if error.name is None or not name.startswith(error.name):
            raise
        return None


def _start(names: dict[str, Any]) -> dict[str, Any]:
    return {"__annotations__": {}, "__builtins__": builtins, "__cached__": None, **names}


def _compile(file: str) -> CodeType:
    with io.open_code(file) as source:
        return compile(source.read(), file, "exec", dont_inherit=True)


def _refuse(reason: str) -> NoReturn:
    sys.stderr.write(f"sla_accelerate.run {reason}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
