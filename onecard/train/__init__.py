"""Training: the only package that imports torch. It does so here, so that one place reports a broken torch."""

from onecard.errors import MachineError, is_out_of_memory, kind_and_line, out_of_memory

try:
    import torch.nn  # noqa: F401  # a folder that is merely called torch has none
except Exception as problem:  # a damaged installation may raise anything
    if is_out_of_memory(problem):
        raise out_of_memory(problem) from problem
    raise MachineError(
        "torch cannot be imported",
        why=kind_and_line(problem),
        fix='python -c "import torch" shows all of it; a fresh copy: pip install --force-reinstall torch',
        name="no-torch",
    ) from problem
