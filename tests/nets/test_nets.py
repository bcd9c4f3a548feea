"""Nets: the paper's architecture, ResNet50 with either stem, projections, and clear refusals."""

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from spaceform import nets


def test_small_net_is_the_papers():
    net = nets.build("small", 3, (1, 28, 28))
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    assert shapes == {
        "conv1.weight": (6, 1, 5, 5),
        "norm1.weight": (6,),
        "norm1.bias": (6,),
        "conv2.weight": (16, 6, 5, 5),
        "norm2.weight": (16,),
        "norm2.bias": (16,),
        "hidden.weight": (120, 784),
        "norm3.weight": (120,),
        "norm3.bias": (120,),
        "embedding.weight": (3, 120),
        "embedding.bias": (3,),
    }
    bound = (6 / (784 + 120)) ** 0.5  # Xavier uniform
    assert 0.98 * bound < net.hidden.weight.abs().max() <= bound
    assert not net.embedding.bias.any()


def test_residual_net_is_the_smallest_of_its_kind():
    torch.manual_seed(0)
    net = nets.build("residual", 5, (3, 32, 32)).double()
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 7  # and the embedding: eight layers
    assert sum(m.weight.numel() for m in convolutions) == 432 + 2 * 2304 + 4608 + 9216 + 18432 + 36864
    x = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    first = F.relu(net.norm(net.conv(x)))
    halved = net.blocks[1](first)
    assert halved.shape == (4, 32, 16, 16)
    with torch.no_grad():  # a block whose second norm says nothing hands on every second pixel
        net.blocks[1].norm2.weight.zero_()
        passed = net.blocks[1](first)
    torch.testing.assert_close(passed[:, :16], first[:, :, ::2, ::2])
    assert not passed[:, 16:].any()
    assert net(x).shape == (4, 5)


def plain(net: nets.SmallNet, x: torch.Tensor) -> torch.Tensor:
    """The text of the paper, layer by layer."""
    x = F.max_pool2d(F.relu(net.norm1(net.conv1(x))), 2)
    x = F.max_pool2d(F.relu(net.norm2(net.conv2(x))), 2)
    return net.embedding(F.relu(net.norm3(net.hidden(x.flatten(1)))))


@pytest.mark.parametrize("training", [True, False])
def test_small_net_computes_what_the_paper_says(training):
    torch.manual_seed(0)
    net = nets.build("small", 3, (1, 28, 28)).double()
    with torch.no_grad():
        net.norm1.weight.copy_(torch.tensor([1.0, -2.0, 0.5, -0.1, 3.0, 0.0]))  # scales of either sign
        net.norm1.bias.normal_()
        net.norm1.running_mean.normal_()
        net.norm1.running_var.uniform_(0.5, 2)
    net.train(training)
    twin = nets.build("small", 3, (1, 28, 28)).double()
    twin.load_state_dict(net.state_dict())
    twin.train(training)
    x = torch.rand(7, 1, 28, 28, dtype=torch.float64)
    ours, theirs = net(x), plain(twin, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-9, msg=name)
    for (name, a), b in zip(net.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


@pytest.mark.slow
def test_resnet50_with_the_cifar_stem():
    net = nets.build("resnet50", 128, (3, 32, 32), stem="cifar").eval()
    assert (net.features.conv1.kernel_size, net.features.conv1.stride) == ((3, 3), (1, 1))
    sides = []
    for part in ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4"):
        getattr(net.features, part).register_forward_hook(lambda *args: sides.append(args[2].shape[-1]))
    with torch.inference_mode():
        assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 128)
    assert sides == [32, 16, 16, 8, 4, 2]
    for stage in (net.features.layer1, net.features.layer4):
        assert all(
            not block.bn3.weight.any() for block in stage
        )  # the last scale of each block starts at zero
    assert not net.embedding.bias.any()


@pytest.mark.parametrize("frozen", ["none", "statistics", "all"])
def test_what_of_batch_norm_is_frozen(frozen):
    net = nets.build("test_resnet", 8, (3, 32, 32), freeze_batch_norm=frozen).train()
    before = {name: b.clone() for name, b in net.named_buffers()}
    net(torch.randn(4, 3, 32, 32)).sum().backward()
    kept = [torch.equal(b, before[name]) for name, b in net.named_buffers()]
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    if frozen == "none":
        assert not any(kept)
        assert all(m.training for m in norms)
    else:
        assert all(kept)
        assert not any(m.training for m in norms)
    trained = [p.grad is not None for m in norms for p in (m.weight, m.bias)]
    assert trained == [frozen != "all"] * len(trained)
    assert net.embedding.weight.grad is not None


@pytest.mark.parametrize(("init", "bound"), [("xavier", (6 / (2048 + 512)) ** 0.5), ("torch", 2048**-0.5)])
def test_how_the_embedding_starts(init, bound):
    torch.manual_seed(0)
    net = nets.TimmNet(nn.Identity(), 2048, 512, init=init)
    assert 0.99 * bound < net.embedding.weight.abs().max() <= bound  # a million uniform numbers
    assert not net.embedding.bias.any()


def test_local_weights(tmp_path):
    source = nets.build("test_resnet", 8, (3, 32, 32))
    with torch.no_grad():
        source.features.conv1[0].weight.fill_(0.5)
    file = tmp_path / "weights.safetensors"
    extra = {"fc.weight": torch.zeros(1000, 8), "fc.bias": torch.zeros(1000)}  # a classifier is left out
    safetensors.torch.save_file({**source.features.state_dict(), **extra}, file)
    net = nets.build("test_resnet", 8, (3, 32, 32), pretrained=True, weights=str(file))
    assert (net.features.conv1[0].weight == 0.5).all()
    safetensors.torch.save_file(extra, file)
    with pytest.raises(
        ValueError, match=r"does not fit 'test_resnet': it lacks 'conv1.0.weight' and \d+ more"
    ):
        nets.build("test_resnet", 8, (3, 32, 32), weights=str(file))
    torch.save(extra, file)
    with pytest.raises(ValueError, match=r"is not a file of weights .*; give a .safetensors file, or a .pth"):
        nets.build("test_resnet", 8, (3, 32, 32), weights=str(file))
    with pytest.raises(ValueError, match="there is no file 'nowhere'"):
        nets.build("test_resnet", 8, (3, 32, 32), weights="nowhere")


@pytest.mark.parametrize(
    ("hidden", "shapes"),
    [
        (None, [(4, 64)]),
        ([], [(4, 64)]),
        (16, [(16, 64), (4, 16)]),
        ([16], [(16, 64), (4, 16)]),
        ((16, 8), [(16, 64), (8, 16), (4, 8)]),
    ],
)
def test_projection(hidden, shapes):
    net = nets.build("projection", 4, (1, 8, 8), hidden=hidden)
    assert [tuple(p.shape) for p in net.parameters() if p.ndim == 2] == shapes
    assert sum(isinstance(m, nn.ReLU) for m in net.modules()) == len(shapes) - 1
    assert net(torch.zeros(3, 1, 8, 8)).shape == (3, 4)
    assert nets.build("projection", 4, (64,), hidden=hidden)(torch.zeros(3, 64)).shape == (3, 4)


def test_options_are_values():
    one = nets.options({"name": "projection", "dim": 4, "hidden": 16})
    assert one == nets.options(one) == nets.ProjectionOptions(dim=4, hidden=(16,))
    assert len({one, nets.options({"dim": 4})}) == 2
    assert nets.options({"dim": 4}) == nets.SmallOptions(dim=4)
    assert nets.options({"name": "vit_tiny", "dim": 4}) == nets.TimmOptions(name="vit_tiny", dim=4)
    with pytest.raises(ValueError, match=r"^net must be a table, got 3$"):
        nets.options(3)
    with pytest.raises(ValueError, match=r"^the key 'net.dim' is missing$"):
        nets.options({"name": "small"})


def test_a_net_whose_weights_come_from_elsewhere_fetches_none():
    options = nets.TimmOptions(name="test_resnet", dim=8, pretrained=True, weights="nowhere", stem="imagenet")
    plain = options.without_weights()
    assert plain == nets.TimmOptions(name="test_resnet", dim=8)
    assert plain.build((3, 32, 32))(torch.zeros(2, 3, 32, 32)).shape == (2, 8)
    small = nets.SmallOptions(dim=3)
    assert small.without_weights() == small


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_dropout_leaves_out_a_share_and_keeps_the_mean(share):
    x = torch.full((1001, 257), 3.0)  # no multiple of eight
    thin = nets.thinned(x, share, torch.Generator().manual_seed(0))
    kept = thin != 0
    exact = round(256 * (1 - share)) / 256
    assert abs(exact - (1 - share)) <= 1 / 512
    error = (exact * (1 - exact) / x.numel()) ** 0.5
    assert abs(kept.double().mean() - exact) < 5 * error
    torch.testing.assert_close(thin[kept], torch.full_like(thin[kept], 3.0 / exact))
    across = (exact * (1 - exact) / len(x)) ** 0.5
    assert (kept.double().mean(0) - exact).abs().max() < 6 * across  # no column is favoured
    pairs = (kept[:, 1:] & kept[:, :-1]).double().mean(0) - exact**2  # nor do neighbours go together
    assert pairs.abs().max() < 6 * across
    again = nets.thinned(x, share, torch.Generator().manual_seed(0))
    assert torch.equal(thin, again)


@pytest.mark.parametrize(("share", "kept"), [(0.0, 1.0), (0.001, 1.0), (0.9999, 1 / 256)])
def test_dropout_at_its_ends(share, kept):
    thin = nets.thinned(torch.ones(1000, 1000), share)
    assert abs((thin != 0).double().mean() - kept) < 0.001
    assert nets.thinned(torch.ones(0, 3), share).shape == (0, 3)


def test_the_projection_drops_features_in_training_alone():
    torch.manual_seed(0)
    net = nets.build("projection", 3, (16,), standardize=True, dropout=0.5)
    x = torch.randn(64, 16)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    net.train()
    torch.manual_seed(1)
    first = net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x), first)


def test_any_timm_name():
    assert nets.build("test_vit", 5, (3, 160, 160)).eval()(torch.zeros(1, 3, 160, 160)).shape == (1, 5)


@pytest.mark.parametrize(
    ("name", "shape", "options", "said"),
    [
        ("resnet51", (3, 32, 32), {}, "unknown net 'resnet51'; did you mean 'resnet5"),
        ("smal", (1, 28, 28), {}, "unknown net 'smal'; did you mean 'small'"),
        ("small", (64,), {}, "takes images of 4x4 or more, got inputs of shape \\(64,\\); try 'projection'"),
        ("small", (1, 28, 28), {"hidden": 5}, "net 'small' has no option 'hidden'; choose from dim"),
        ("projection", (64,), {"stem": "cifar"}, "net 'projection' has no option 'stem'; choose from dim, h"),
        ("resnet50", (3, 32, 32), {"dropout": 0.5}, "net 'resnet50' has no option 'dropout'; choose from"),
        (
            "projection",
            (64,),
            {"droput": 0.5},
            "net 'projection' has no option 'droput'; did you mean 'd",
        ),
        ("projection", (64,), {"hidden": [8, 0]}, "net.hidden.1 must be greater than 0, got 0"),
        ("projection", (64,), {"hidden": "wide"}, "net.hidden must be a valid tuple, got 'wide'"),
        ("test_vit", (3, 160, 160), {"stem": "cifar"}, "'test_vit' has no such stem"),
        ("test_resnet", (64,), {}, "takes images, got inputs of shape"),
        ("test_resnet", (3, 32, 32), {"hidden": 5}, "net 'test_resnet' has no option 'hidden'"),
    ],
)
def test_mistakes_are_told(name, shape, options, said):
    with pytest.raises(ValueError, match=said):
        nets.build(name, 3, shape, **options)
