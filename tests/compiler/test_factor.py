"""Proposition 1: products of generalised Householder matrices, multiplied back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from statetrack.compiler import factor
from statetrack.compiler.factor import Factor, product
from statetrack.errors import UserError


def permutation_matrix(points: list[int]) -> np.ndarray:
    """Takes e_i to e_points[i], or to 0 for -1."""
    matrix = np.zeros((len(points), len(points)), dtype=np.int64)
    for i, point in enumerate(points):
        if point >= 0:
            matrix[point, i] = 1
    return matrix


def random_orthogonal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def test_all_permutations_of_five_points_bit_for_bit() -> None:
    for points in itertools.permutations(range(5)):
        factors = factor.permutation(points)
        back = product(factors, 5)
        assert back.dtype == np.int64
        np.testing.assert_array_equal(back, permutation_matrix(list(points)))
        assert len(factors) <= 4
        for b, v in factors:
            assert b == 1
            assert sorted(v) == [-1, 0, 0, 0, 1]
        single = product([Factor(f.b, f.v.astype(np.float32)) for f in factors], 5)
        np.testing.assert_array_equal(single, permutation_matrix(list(points)))


def test_partial_injections() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(1, 9))
        points = rng.permutation(n)
        points[rng.random(n) < 0.4] = -1
        factors = factor.partial_injection(points)
        np.testing.assert_array_equal(product(factors, n), permutation_matrix(points.tolist()))
        assert len(factors) <= n
        nothing = [None if point < 0 else point for point in points.tolist()]
        assert len(factor.partial_injection(nothing)) == len(factors)
        np.testing.assert_array_equal(
            product(factor.partial_injection(nothing), n), permutation_matrix(points.tolist())
        )


def test_zero() -> None:
    factors = factor.zero(4)
    assert len(factors) == 4
    np.testing.assert_array_equal(product(factors, 4), np.zeros((4, 4)))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64])
def test_orthogonal(n: int) -> None:
    rng = np.random.default_rng(n)
    for Q in (random_orthogonal(rng, n), np.eye(n), -np.eye(n), np.eye(n)[rng.permutation(n)]):
        factors = factor.orthogonal(Q)
        assert len(factors) <= n
        np.testing.assert_allclose(product(factors, n), Q, atol=1e-13)
        for b, v in factors:
            assert b == 2
            assert np.isclose(np.linalg.norm(v), 1)


@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize(("form", "most"), [("polar", 2), ("paper", 3)])
def test_contraction(n: int, form: str, most: int) -> None:
    rng = np.random.default_rng(n)
    random = rng.normal(size=(n, n))
    random /= np.linalg.norm(random, 2)
    singular = random.copy()
    singular[:, 0] = 0
    for M in (random, 0.3 * random, singular, np.zeros((n, n)), np.eye(n)):
        factors = factor.contraction(M, form)
        assert len(factors) <= most * n
        np.testing.assert_allclose(product(factors, n), M, atol=1e-13)
        for b, v in factors:
            assert -1 - 1e-12 <= 1 - b * (v @ v) <= 1


def test_norms_of_products_are_at_most_one() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        n, k = int(rng.integers(2, 6)), int(rng.integers(1, 8))
        vectors = rng.normal(size=(k, n))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        strengths = rng.uniform(0, 2, k)
        N = product([Factor(b, v) for b, v in zip(strengths, vectors, strict=True)], n)
        assert np.linalg.norm(N, 2) <= 1 + 1e-12
        sizes = np.abs(np.linalg.eigvals(N))
        assert ((np.abs(sizes - 1) < 1e-9) | (sizes < 1)).all()
        if k <= 2:  # two positive semidefinite factors: the eigenvalues are real, from 0 to 1
            halves = [Factor(b / 2, v) for b, v in zip(strengths, vectors, strict=True)]
            values = np.linalg.eigvals(product(halves, n))
            assert np.abs(values.imag).max() < 1e-9
            assert -1e-9 < values.real.min() <= values.real.max() < 1 + 1e-9


def test_three_factors_have_complex_eigenvalues() -> None:
    """The early version's Proposition 1.3 says that they are real, for beta in [0, 1] and any k."""
    axes = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]])
    eightfold = np.rint(8 * product([Factor(1 / 2, v) for v in axes], 3)).astype(np.int64)
    integers = [2 * np.eye(3, dtype=np.int64) - np.outer(v, v) for v in axes]
    np.testing.assert_array_equal(eightfold, integers[0] @ integers[1] @ integers[2])
    np.testing.assert_array_equal(eightfold, [[2, -1, 1], [-2, 1, -1], [-4, -2, 2]])
    np.testing.assert_allclose(np.poly(eightfold), [1, -5, 8, 0], atol=1e-12)
    values = np.linalg.eigvals(eightfold / 8)
    wanted = [0, (5 - 7**0.5 * 1j) / 16, (5 + 7**0.5 * 1j) / 16]
    np.testing.assert_allclose(sorted(values, key=lambda z: (z.real, z.imag)), wanted, atol=1e-12)


def test_three_projectors_have_a_negative_eigenvalue() -> None:
    # that the product of factors with eigenvalues in [0, 1] has its own there ends with k = 2
    angles = np.deg2rad([0, 60, 120])
    projectors = [Factor(1, np.array([np.cos(a), np.sin(a)])) for a in angles]
    values = np.sort(np.linalg.eigvals(product(projectors, 2)).real)
    np.testing.assert_allclose(values, [-1 / 8, 0], atol=1e-15)


def test_half_a_quarter_turn_needs_three_factors() -> None:
    target = 0.5 * np.array([[0.0, -1.0], [1.0, 0.0]])
    # M = G1 G2 with symmetric factors: search both angles and both strengths
    angles = np.linspace(0, np.pi, 37)
    strengths = np.linspace(0, 2, 21)
    v = np.stack([np.cos(angles), np.sin(angles)], -1)
    outer = v[:, :, None] * v[:, None, :]
    G = (np.eye(2) - strengths[:, None, None, None] * outer).reshape(-1, 2, 2)
    least = min(np.abs(A @ G - target).max(axis=(1, 2)).min() for A in G)
    assert least > 0.1
    assert len(factor.contraction(target)) <= 4


def test_the_order_of_a_product() -> None:
    first, second = Factor(1, np.array([1, -1, 0])), Factor(1, np.array([0, 1, -1]))
    np.testing.assert_array_equal(product([first, second], 3), first.dense() @ second.dense())
    np.testing.assert_array_equal(product([], 3), np.eye(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: factor.permutation([0, 0]), "permutation of 2 points"),
        (lambda: factor.partial_injection([1, 1]), "partial injection of 2 points"),
        (lambda: factor.partial_injection([2, -1]), "at most once"),
        (lambda: factor.orthogonal([[1, 0], [0, 2]]), "orthogonal matrix is needed"),
        (lambda: factor.orthogonal([[1, 0, 0], [0, 1, 0]]), "square matrix.*shape \\(2, 3\\)"),
        (lambda: factor.contraction([[1, 1], [0, 1]]), "norm at most 1.*has norm 1.6"),
        (lambda: factor.contraction([[np.nan]]), "finite"),
        (lambda: factor.contraction([[1]], "other"), "form must be one of polar, paper"),
    ],
)
def test_errors(call: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()  # type: ignore[operator]
