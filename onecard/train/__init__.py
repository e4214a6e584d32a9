"""Training: the only package that imports torch. It does so here, so that one place reports a broken torch."""

from onecard.errors import MachineError, kind_and_line

try:
    import torch.nn  # noqa: F401  # a folder that is merely called torch has none
except Exception as problem:  # a damaged installation may raise anything
    raise MachineError(
        "torch cannot be imported",
        why=kind_and_line(problem),
        fix='python -c "import torch" shows all of it; a fresh copy: pip install --force-reinstall torch',
        name="no-torch",
    ) from problem
