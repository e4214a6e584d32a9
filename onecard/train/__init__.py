"""Training: the only package that imports torch. It does so here, so that one place tells of a torch that is broken."""

from onecard.errors import MachineError

try:
    import torch.nn  # noqa: F401  # a folder that is merely called torch has none
except Exception as problem:  # whatever a damaged installation raises: it is the machine's
    said = str(problem).partition("\n")[0]
    raise MachineError(
        "torch cannot be imported",
        why=f"{type(problem).__name__}: {said}" if said else type(problem).__name__,
        fix='python -c "import torch" shows all of it; a fresh copy: pip install --force-reinstall torch',
        name="no-torch",
    ) from problem
