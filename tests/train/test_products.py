"""Products off CUDA, and what a kernel is told of its operands; the kernels are in test_fused_on_a_card.py."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from onecard.errors import is_out_of_memory  # noqa: E402
from onecard.train import products  # noqa: E402
from onecard.train.products import _alignment, _operand, has_products, multiply  # noqa: E402


def randn(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


# Off CUDA


@pytest.mark.parametrize("factor", [None, 0.25])
@pytest.mark.parametrize("adds", ["nothing", "another", "itself"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_is_scaled_added_and_written(adds: str, factor: float | None, transposed: bool) -> None:
    a_MK, b_KN, out_MN = randn(5, 7), (randn(3, 7).t() if transposed else randn(7, 3)), randn(5, 3)
    added_MN = {"nothing": None, "another": randn(5, 3) + 1, "itself": out_MN}[adds]
    expected_MN = a_MK @ b_KN * (factor or 1.0) + (0 if added_MN is None else added_MN)
    unchanged = None if added_MN is None else added_MN.clone()
    multiply(a_MK, b_KN, out_MN, added_MN=added_MN, factor=None if factor is None else torch.tensor(factor))
    torch.testing.assert_close(out_MN, expected_MN)
    if adds == "another":
        assert torch.equal(added_MN, unchanged), "only read"


def test_a_product_is_added_to_a_wider_sum_without_narrowing_it() -> None:
    a_MK, b_KN = randn(5, 7, dtype=torch.float32), randn(7, 3, dtype=torch.float32)
    sum_MN = randn(5, 3)
    expected_MN = sum_MN + a_MK.double() @ b_KN.double()
    before_MN = sum_MN.clone()
    multiply(a_MK, b_KN, sum_MN, added_MN=sum_MN)
    torch.testing.assert_close(sum_MN, expected_MN, rtol=0, atol=1e-5)
    multiply(torch.zeros_like(a_MK), b_KN, before_MN, added_MN=before_MN)
    assert torch.equal(before_MN, randn(5, 3)), "what nothing is added to keeps all its bits"


def test_a_product_is_written_to_rows_of_a_larger_tensor() -> None:
    a_MK, b_KN, whole = randn(2, 7), randn(7, 3), torch.zeros(6, 3, dtype=torch.float64)
    multiply(a_MK, b_KN, whole[2:4], added_MN=whole[2:4])
    torch.testing.assert_close(whole[2:4], a_MK @ b_KN)
    assert not whole[:2].any()
    assert not whole[4:].any()


# What a kernel is told


@given(numbers=st.integers(0, 300), dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_an_address_is_aligned_to_the_largest_power_of_two_that_divides_it(numbers: int, dtype: Any) -> None:
    vector = torch.empty(512, dtype=dtype)[numbers:]
    found, address = _alignment(vector), vector.data_ptr()
    assert found in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert address % found == 0
    assert found == 256 or address % (2 * found) != 0


def test_nothing_has_no_address_and_is_aligned() -> None:
    assert _alignment(torch.empty(0)) == 256


def test_an_operand_is_known_by_type_order_stride_and_alignment() -> None:
    matrix = torch.zeros(64, 32, dtype=torch.bfloat16)
    plain = _operand(matrix)
    assert (plain.dtype, plain.transposed, plain.stride) == (torch.bfloat16, False, 32)
    turned = _operand(matrix.t())
    assert (turned.transposed, turned.stride) == (True, 32)
    assert turned.alignment == plain.alignment
    columns = _operand(matrix[:, 1:9])
    assert (columns.transposed, columns.stride, columns.alignment) == (False, 32, 2)
    rows_of_turned = _operand(matrix.t()[4:9])
    assert (rows_of_turned.transposed, rows_of_turned.stride) == (True, 32)
    assert _operand(matrix.half()).dtype == torch.float16


def test_the_same_kind_of_operand_is_the_same_key() -> None:
    # Tensors of an update come from other addresses every time; their kernels must not be searched again.
    whole = torch.zeros(256, 128, dtype=torch.float16)  # 256 bytes a row
    assert len({_operand(whole[start : start + 8]) for start in range(100)}) == 1
    assert len({_operand(each) for each in (whole, whole.t(), whole[:, 1:], whole[:, :64])}) == 3
    assert _operand(whole[:, :64]) == _operand(whole), "how many columns is the product's shape to know"


def test_a_matrix_whose_rows_and_columns_both_have_gaps_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="rows or columns lie together"):
        _operand(torch.zeros(8, 8)[::2, ::2])


# Without the library


@pytest.fixture
def library() -> Iterator[None]:
    products._library.cache_clear()
    yield
    products._library.cache_clear()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("platform", ["linux", "win32"])
@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_without_cublaslt_there_are_no_such_products(
    platform: str, cuda: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def missing(name: str) -> None:
        asked.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(products.sys, "platform", platform)
    assert not has_products()
    assert not has_products()
    assert len(asked) == 1, "asked once for all"
    if cuda:
        assert asked == [{"linux": "libcublasLt.so.13", "win32": "cublasLt64_13.dll"}[platform]]


@pytest.mark.usefixtures("library")
def test_with_cublaslt_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: name)
    assert has_products()


def test_a_refusal_of_the_library_is_an_error_and_not_a_wrong_product() -> None:
    products._check(0)
    with pytest.raises(RuntimeError, match="status 15"):
        products._check(15)


def test_torch_multiplies_what_cublaslt_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise products.NoKernel

    monkeypatch.setattr(products, "_is_on_card", lambda _: True)
    monkeypatch.setattr(products, "_product", lambda *_: refuses)
    a_MK, b_KN, before_MN = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    out_MN = before_MN.clone()
    products.multiply(a_MK, b_KN, out_MN, added_MN=out_MN, factor=torch.tensor(0.5))
    torch.testing.assert_close(out_MN, before_MN + 0.5 * a_MK @ b_KN)


class Described(products._Product):
    """A product without a library: what its search finds, and what its kernel answers."""

    def __init__(self, found: Any, status: int = 0) -> None:
        self._searched, self._chosen, self._one = False, None, None
        self._found, self._status = found, status
        self.searches = self.runs = 0

    def _fastest(self, operands: Any) -> Any:
        self.searches += 1
        return self._found

    def _run(self, candidate: Any, operands: Any, factor: Any) -> int:
        self.runs += 1
        return self._status


@pytest.mark.parametrize(("found", "status"), [(None, 0), ("kernel", 15)], ids=["none", "refuses"])
def test_a_product_without_a_kernel_says_so_every_time_and_searches_once(found: Any, status: int) -> None:
    product, matrix = Described(found, status), torch.zeros(2, 2)
    for _ in range(3):
        with pytest.warns(UserWarning, match="no kernel for a product of 2 x 2 x 2"), pytest.raises(products.NoKernel):
            product(matrix, matrix, matrix, None, None)
    assert product.searches == 1
    assert product.runs == (0 if found is None else 3)


def test_a_product_with_a_kernel_runs_it_and_searches_once() -> None:
    product, matrix = Described("kernel"), torch.zeros(2, 2)
    for _ in range(3):
        product(matrix, matrix, matrix, None, None)
    assert (product.searches, product.runs) == (1, 3)


class Timed(products._Product):
    """A product of several kernels on a card that slows down as it warms, by 10 % with every timing."""

    def __init__(self, microseconds: dict[str, float], refused: str = "") -> None:
        self._tiny, self._one = "tiny", "one"
        self._microseconds, self._refused = microseconds, refused
        self._warmth = 1.0
        self.factors: set[Any] = set()

    def _candidates(self) -> list[Any]:
        return list(self._microseconds)

    def _run(self, candidate: Any, operands: Any, factor: Any) -> int:
        self.factors.add(factor)
        return int(candidate == self._refused)

    def _milliseconds(self, candidate: Any, operands: Any, factor: Any) -> float:
        self._warmth *= 1.1
        return self._microseconds[candidate] * self._warmth


@pytest.fixture
def operands(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, ...]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # a CPU's torch has no such call
    return tuple(torch.zeros(2, 2) for _ in range(4))


def test_the_fastest_kernel_is_chosen_also_on_a_card_that_slows_while_they_are_timed(operands: Any) -> None:
    assert Timed({"first": 100, "last": 80})._fastest(operands) == "last"
    assert Timed({"first": 80, "last": 100})._fastest(operands) == "first"


def test_a_kernel_that_refuses_is_not_timed(operands: Any) -> None:
    assert Timed({"slow": 100, "fast": 50}, refused="fast")._fastest(operands) == "slow"
    assert Timed({"only": 50}, refused="only")._fastest(operands) is None
    assert Timed({})._fastest(operands) is None


def test_while_they_are_timed_kernels_leave_a_sum_as_it_is(operands: Any) -> None:
    a, b, added, out = operands
    for plus, factor in ((out, "tiny"), (added, "one")):
        product = Timed({"kernel": 1})
        product._fastest((a, b, plus, out))
        assert product.factors == {factor}


def test_a_library_without_memory_answers_in_words_that_are_known_as_such() -> None:
    with pytest.raises(RuntimeError) as caught:
        products._check(3)
    assert is_out_of_memory(caught.value)
    with pytest.raises(RuntimeError, match="status 7"):
        products._check(7)
