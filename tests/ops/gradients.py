"""What operators give forward and backward, and its comparison bit for bit."""

import torch


def results(function, tensors, dy_seed=5):
    leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    y = function(*leaves)
    torch.manual_seed(dy_seed)
    y.backward(torch.randn_like(y))
    return [y.detach()] + [leaf.grad for leaf in leaves]


def assert_same(got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        assert (g is None) == (w is None), i
        assert g is None or (g.dtype == w.dtype and torch.equal(g, w)), i
