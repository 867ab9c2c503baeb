"Properties of spectra: squares add up, translations change nothing, fast equals slow; and tangent kernels have no negative directions."
import itertools
from functools import lru_cache

import torch
from grok_nb.analysis.irrep_power import irrep_powers
from grok_nb.analysis.ntk import ntk
from grok_nb.analysis.walsh import degrees, fourier_gap, fwht, number_of, set_of, walsh_coefficients
from grok_nb.models.bank import Bank, make_bank
from grok_nb.models.mlp import MLP
from grok_nb.models.tables import spectrum
from grok_nb.tasks.boolean import Boolean
from grok_nb.tasks.groups import Alternating, Cube, Cyclic, Dihedral, GroupComposition, Product, Quaternion, Symmetric, generators
from grok_nb.tasks.irreps import irreps
from grok_nb.tasks.seeds import generator
from hypothesis import given, settings
from hypothesis import strategies as st

some = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32)
small = [*map(Cyclic, range(1, 8)), *map(Dihedral, range(1, 7)), *map(Cube, (1, 2, 3)), *map(Symmetric, (2, 3, 4)), *map(Alternating, (3, 4)), Quaternion()]
pairs = [Product(p) for p in itertools.product(small, repeat=2) if p[0].order*p[1].order <= 48]
groups = st.sampled_from(small) | st.sampled_from(pairs)
scales = st.sampled_from([1e-8, 1., 1e8])


def noise(*shape, seed, scale=1.): return scale*torch.randn(shape, generator=generator('spectra', seed), dtype=torch.float64)


def close(a, b): torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9*float(b.abs().max()) if b.numel() else 0.)


# waves over residues

@some
@given(st.integers(1, 40), seeds, scales, st.integers(-50, 50))
def test_frequencies_keep_squares_and_ignore_shifts(p, seed, scale, by):
    u = noise(2, p, 3, seed=seed, scale=scale)
    s = spectrum(u, dim=1)
    assert s.shape == (2, p//2 + 1, 3) and (s >= 0).all()
    close(s.sum(1), u.square().sum(1))
    close(spectrum(u.roll(by, 1), dim=1), s)
    close(spectrum(u.flip(1), dim=1), s)


# irreps of any finite group

@some
@given(groups)
def test_irreps_are_orthogonal_and_multiply_as_the_elements_do(group):
    I = irreps(group)
    assert sum(r.span for r in I.parts) == group.order and I.missing == sum(r.span for r in I.parts if r.kind != 'real')
    for r in I.parts:
        M, one = r.matrices, torch.eye(r.dim, dtype=torch.float64)
        assert (M@M.mT - one).abs().max() < 1e-10 and (M[0] - one).abs().max() < 1e-10
        for h in generators(group.table): assert (M@M[h] - M[group.table[:, h]]).abs().max() < 1e-10


@some
@given(groups)
def test_characters_are_orthogonal_class_functions(group):
    X, k = torch.stack([r.character for r in irreps(group).parts]), group.classes()
    first = torch.stack([(k == c).nonzero()[0, 0] for c in range(int(k.max()) + 1)])
    assert (X - X[:, first][:, k]).abs().max() < 1e-9
    assert (X@X.T/group.order - torch.diag(torch.tensor([float(r.fold) for r in irreps(group).parts]))).abs().max() < 1e-9


@some
@given(groups, seeds, scales, st.data())
def test_irrep_power_keeps_squares_and_ignores_translations(group, seed, scale, data):
    u, t = noise(2, group.order, 3, seed=seed, scale=scale), group.table
    P = irrep_powers(u, group, dim=1)
    assert (P >= 0).all()
    close(P.sum(1), u.square().sum(1))
    g = data.draw(st.integers(0, group.order - 1))
    close(irrep_powers(u[:, t[g]], group, 1), P)
    close(irrep_powers(u[:, t[:, g]], group, 1), P)
    close(irrep_powers(u[:, group.inverse], group, 1), P)


@some
@given(groups, seeds, st.data())
def test_entries_of_an_irrep_have_power_in_it_alone(group, seed, data):
    parts = irreps(group).parts
    i = data.draw(st.integers(0, len(parts) - 1))
    u = parts[i].matrices.flatten(1)@noise(parts[i].dim**2, seed=seed)
    share = irrep_powers(u, group)/u.square().sum()
    assert share[i] > 1 - 1e-9 and share.sum() - share[i] < 1e-9


@some
@given(st.sampled_from(small), seeds)
def test_renaming_the_elements_renames_nothing_else(group, seed):
    n = group.order
    new = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(n - 1, generator=generator('names', seed))])    # 0 stays the identity
    table = torch.empty(n, n, dtype=torch.long)
    table[new[:, None], new] = new[group.table]
    a, b = irreps(group), irreps(table)
    assert sorted((r.dim, r.kind) for r in a.parts) == sorted((r.dim, r.kind) for r in b.parts)
    u = noise(n, seed=seed)
    moved = torch.empty_like(u)
    moved[new] = u
    close(irrep_powers(moved, table).sort().values, irrep_powers(u, group).sort().values)


@some
@given(st.integers(1, 30), seeds)
def test_on_a_clock_irreps_are_frequencies(p, seed):
    u = noise(p, seed=seed)
    close(irrep_powers(u, Cyclic(p)).sort().values, spectrum(u).sort().values)


# parities of bits

@lru_cache
def matrix(n): return torch.tensor([[(-1.)**(m & s).bit_count() for s in range(2**n)] for m in range(2**n)], dtype=torch.float64)


@some
@given(st.integers(0, 6), st.integers(0, 2), seeds, scales)
def test_the_fast_transform_is_the_hadamard_matrix(n, dim, seed, scale):
    shape = [2, 3]
    shape.insert(dim, 2**n)
    u = noise(*shape, seed=seed, scale=scale)
    close(fwht(u, dim), (u.movedim(dim, -1)@matrix(n)).movedim(-1, dim))
    close(fwht(fwht(u, dim, normalised=True), dim - 3, normalised=True), u)
    close(fwht(u, dim, normalised=True).square().sum(dim), u.square().sum(dim))


@some
@given(st.integers(0, 8), seeds, st.data())
def test_walsh_power_keeps_squares_and_ignores_flips(n, seed, data):
    f, s = noise(2, 2**n, seed=seed), data.draw(st.integers(0, 2**n - 1))
    c = walsh_coefficients(f)
    close(c.square().sum(1), f.square().mean(1))
    flipped = walsh_coefficients(f[:, torch.arange(2**n) ^ s])
    close(flipped.square(), c.square())
    sign = torch.tensor([(-1.)**(s & T).bit_count() for T in range(2**n)], dtype=torch.float64)
    close(flipped, c*sign)


@some
@given(st.integers(1, 4), seeds)
def test_on_bits_irreps_are_parities(n, seed):
    f = noise(2**n, seed=seed)
    close(irrep_powers(f, Cube(n)).sort().values, (2**n*walsh_coefficients(f).square()).sort().values)


@some
@given(st.integers(1, 8), st.data())
def test_a_parity_has_one_coefficient_at_its_own_number(n, data):
    S = tuple(sorted(data.draw(st.sets(st.integers(0, n - 1)))))
    x = Boolean(n=n, k=1).data('all')[0]
    c = walsh_coefficients(x[:, list(S)].prod(1).double())
    assert set_of(number_of(S, n), n) == S and degrees(n)[number_of(S, n)] == len(S)
    assert c[number_of(S, n)] == 1 and c.abs().sum() == 1


@some
@given(st.integers(2, 8), seeds, st.data())
def test_the_fourier_gap_is_that_of_the_first_gradient(n, seed, data):
    S = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1)))
    x, w = Boolean(n=n, k=1).data('all')[0].double(), noise(n + 1, seed=seed)
    h = (x@w[:n] + w[n] > 0).double()
    g = ((x[:, S].prod(1)*h)[:, None]*x).mean(0).abs()
    out = [i for i in range(n) if i not in S]
    assert abs(fourier_gap(h, S) - (g[S].min() - g[out].max())) < 1e-12
    assert abs(fourier_gap(h, S, relaxed=True) - (g[S].max() - g[out].max())) < 1e-12


# tangent kernels

models = st.builds(MLP, width=st.integers(1, 6), depth=st.integers(1, 2), act=st.sampled_from(['relu', 'square', 'tanh']), bias=st.sampled_from(['none', 'first', 'all']))


@some
@given(models, st.sampled_from(['full', 'pseudo']), st.booleans(), seeds)
def test_tangent_kernels_are_symmetric_and_have_no_negative_direction(model, kind, tokens, seed):
    task = GroupComposition(Cyclic(3), 1.) if tokens else Boolean(n=4, k=2)
    bank = make_bank(model, task, seeds=(seed % 99, seed % 99 + 1))
    bank = Bank(bank.model, {k: v.double() for k,v in bank.params.items()})
    x = task.data('all')[0][:7]
    x = x.double() if x.is_floating_point() else x
    K = ntk(bank, x, kind=kind)
    size = len(x)*(task.outputs if kind == 'full' else 1)
    assert K.numel() == 2*size**2
    K = K.reshape(2, size, size)
    scale = K.abs().amax()
    assert (K - K.mT).abs().max() <= 1e-9*scale
    assert torch.linalg.eigvalsh(K).min() >= -1e-9*scale
    at = seed % size                                              # on the diagonal: the squared length of a gradient
    params = {k: v.clone().requires_grad_() for k,v in bank.params.items()}
    f = model.forward(params, x)
    f = f.flatten(1) if kind == 'full' else f.sum(2)/task.outputs**.5
    grads = torch.autograd.grad(f[:, at].sum(), list(params.values()))
    close(K[:, at, at], sum(g.flatten(1).square().sum(1) for g in grads))
