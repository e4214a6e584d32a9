"""Training: the only package that imports torch. It does so here, so that one place tells of a torch that is broken."""

from onecard.errors import MachineError, kind_and_line

try:
    import torch.nn  # noqa: F401  # a folder that is merely called torch has none
except Exception as problem:  # whatever a damaged installation raises: it is the machine's
    raise MachineError(
        "torch cannot be imported",
        why=kind_and_line(problem),
        fix='python -c "import torch" shows all of it; a fresh copy: pip install --force-reinstall torch',
        name="no-torch",
    ) from problem
