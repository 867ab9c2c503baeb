"Replicas in TransformerLens: equal logits, for every kind of block. Skipped where it is not installed."
import itertools
import pytest
import torch
import torch.nn.functional as F
from grok_nb.models.bank import make_bank
from grok_nb.models.embed import Fixed, Free, LowRank
from grok_nb.models.plain import to_transformer_lens
from grok_nb.models.transformer import Transformer
from grok_nb.tasks.modular import ModularArithmetic
from grok_nb.tasks.seeds import generator
from grok_nb.train.experiment import Experiment
from grok_nb.train.fit import fit
from grok_nb.train.optim import AdamW

pytest.importorskip('transformer_lens')
blocks = list(itertools.product((None, 3), (1, 2), ('none', 'pre'), (True, False), ('relu', 'gelu')))


@pytest.mark.parametrize('head,depth,norm,equals,act', blocks)
def test_equal_logits(head, depth, norm, equals, act):
    task = ModularArithmetic(p=11)
    x, _ = task.data()
    model = Transformer(d=8, heads=2, head=head, mlp=6, depth=depth, norm=norm, equals=equals, act=act)
    bank = make_bank(model, task, seeds=(0, 1), dtype=torch.float64)
    for k, v in bank.params.items():        # biases of 0 and bare norms would hide mistakes
        v.add_(.1*torch.randn(v.shape, generator=generator('lens', k)).double())
    bridge = to_transformer_lens(bank, 1)
    tokens = F.pad(x, (0, 1), value=11) if equals else x
    with torch.no_grad(): logits = bridge(tokens, return_type='logits')[:, -1]
    torch.testing.assert_close(logits, bank(x)[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('embed', (Free(11), LowRank(2, 11), Fixed('one-hot')))
def test_embeddings(embed):
    task = ModularArithmetic(p=11)
    x, _ = task.data()
    bank = make_bank(Transformer(d=11, heads=1, mlp=6, embed=embed), task, dtype=torch.float64)
    with torch.no_grad(): logits = to_transformer_lens(bank)(F.pad(x, (0, 1), value=11), return_type='logits')[:, -1]
    torch.testing.assert_close(logits, bank(x)[0], rtol=1e-9, atol=1e-9)


def test_checkpoint(tmp_path):
    task = ModularArithmetic(p=11)
    x, _ = task.data()
    run = fit(Experiment(task, Transformer(d=16, heads=2, mlp=32), AdamW(lr=.01), steps=20, seeds=2), tmp_path)
    with torch.no_grad(): logits = to_transformer_lens(run.at(), 1)(F.pad(x, (0, 1), value=11), return_type='logits')[:, -1]
    assert logits.dtype == torch.float32 and (logits - run.at(0)(x)[1]).abs().max() > .1     # it was trained
    torch.testing.assert_close(logits, run.at()(x)[1], rtol=1e-4, atol=1e-4)


def test_hooks_see_what_we_see():
    task = ModularArithmetic(p=11)
    x, _ = task.data()
    bank = make_bank(Transformer(d=8, heads=2, mlp=6), task, dtype=torch.float64)
    with torch.no_grad(): _, cache = to_transformer_lens(bank).run_with_cache(F.pad(x, (0, 1), value=11))
    ours = bank.activations(x)
    torch.testing.assert_close(cache['blocks.0.attn.hook_pattern'], ours['blocks.0.attn'][0])
    torch.testing.assert_close(cache['blocks.0.mlp.hook_post'], ours['blocks.0.hidden'][0])
