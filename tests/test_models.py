"""The built-in models: shapes only, the same parameters whatever the transform, honest training losses."""

from __future__ import annotations

import functools
import tracemalloc
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.models import dropout_mlp, mlp, mobilenet, resnet, transformer, unet, vgg, vgg_unet
from experiments.models.arguments import floats, integers, key, materialise

FACTORIES = {
    "resnet": (resnet.loss, {"depth": 8, "batch": 2, "image": 8, "width": 4}),
    "resnet_bottleneck": (
        resnet.loss,
        {"stages": (1, 2), "bottleneck": True, "stem": "imagenet", "batch": 2, "image": 32, "width": 4},
    ),
    "mlp": (mlp.loss, {"layers": 3, "batch": 8, "width": 4}),
    "dropout_mlp": (dropout_mlp.loss, {"layers": 2, "batch": 8, "width": 8}),
    "transformer": (
        transformer.loss,
        {"layers": 2, "batch": 2, "length": 8, "width": 8, "heads": 2, "vocabulary": 16},
    ),
    "unet": (unet.loss, {"levels": 2, "batch": 2, "image": (8, 12), "width": 4}),
    "vgg": (vgg.loss, {"convolutions": (1, 2), "batch": 2, "image": 8, "width": 4, "hidden": 8, "classes": 10}),
    "vgg_unet": (vgg_unet.loss, {"convolutions": (1, 1), "batch": 2, "image": (8, 12), "width": 4, "classes": 3}),
    "mobilenet": (mobilenet.loss, {"blocks": [(2, 1), (4, 2)], "batch": 2, "image": 16, "width": 4, "classes": 10}),
}
BLOCKS = {
    "resnet": 3,
    "resnet_bottleneck": 3,
    "mlp": 3,
    "dropout_mlp": 2,
    "transformer": 2,
    "unet": 5,
    "vgg": 2,
    "vgg_unet": 2,
    "mobilenet": 2,
}
small = pytest.mark.parametrize("name", FACTORIES)


def make(name: str) -> Any:
    factory, options = FACTORIES[name]
    return factory(**options)


def shapes(tree: Any) -> list[tuple[str, tuple[int, ...], str]]:
    return [(jax.tree_util.keystr(path), x.shape, str(x.dtype)) for path, x in jax.tree.flatten_with_path(tree)[0]]


def count(jaxpr: Any, names: set[str]) -> int:
    """Equations with one of these primitives, in inner jaxprs too."""
    total = 0
    for eqn in jaxpr.eqns:
        total += eqn.primitive.name in names
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += count(inner, names)
    return total


@pytest.mark.parametrize(
    "factory", dict.fromkeys(factory for factory, _ in FACTORIES.values()), ids=lambda f: f.__module__.rpartition(".")[2]
)
def test_defaults_trace_and_are_shapes(factory: Any):
    model = factory()
    loss, args, blocks = model
    assert (loss, blocks) == (model.loss, model.blocks)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    value = jax.eval_shape(loss, *args)
    if model.has_aux:
        value, aux = value
        assert shapes(aux) == shapes(args[1])
    assert (value.shape, value.dtype) == ((), jnp.float32)


def step(model: Any, loss: Any, args: Any) -> Any:
    return jax.jit(jax.value_and_grad(loss, model.argnums, has_aux=model.has_aux))(*args)


@functools.cache
def plain_step(name: str) -> tuple[Any, Any, Any]:
    """A small model, real arguments, and what plain JAX makes of them: compiled once for all tests."""
    model = make(name)
    args = model.materialise(seed=1)
    return model, args, step(model, model.loss, args)


@small
def test_blocks_keep_parameters_values_and_gradients(name: str):
    model, args, plain = plain_step(name)
    rebuilt = model.blocks(nn.remat)
    remat = step(model, rebuilt, args)
    assert shapes(plain[1]) == shapes(remat[1]) == shapes(args[0])
    for (path, a), b in zip(jax.tree.flatten_with_path(plain)[0], jax.tree.leaves(remat), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))

    remats = {"checkpoint", "remat", "remat2"}
    assert count(jax.make_jaxpr(model.loss)(*args).jaxpr, remats) == 0
    assert count(jax.make_jaxpr(rebuilt)(*args).jaxpr, remats) == BLOCKS[name]


NETWORKS = {
    "resnet": lambda wrap: resnet.ResNet((1, 1, 1), 4, 10, False, wrap(resnet.BasicBlock)),
    "resnet_bottleneck": lambda wrap: resnet.ResNet((1, 2), 4, 10, True, wrap(resnet.Bottleneck)),
    "dropout_mlp": lambda wrap: dropout_mlp.DropoutMLP(2, 10, 0.1, wrap(dropout_mlp.Block)),
    "transformer": lambda wrap: transformer.Transformer(2, 8, 2, 16, wrap(transformer.Block)),
    "unet": lambda wrap: unet.UNet(2, 4, 4, wrap(unet.Block)),
    "vgg": lambda wrap: vgg.VGG((1, 2), 4, 8, 10, wrap(vgg.Stage)),
    "vgg_unet": lambda wrap: vgg_unet.VGGUNet((1, 1), 4, 3, wrap(vgg.Stage)),
    "mobilenet": lambda wrap: mobilenet.MobileNet(((2, 1), (4, 2)), 4, 10, wrap(mobilenet.Separable)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_parameters_have_the_same_paths_with_wrapped_blocks(name: str):
    args = make(name).args
    x = args[1] if name in ("transformer", "unet", "vgg") else args[2]
    keys = {"params": key(), "dropout": key()}
    plain, wrapped = (jax.eval_shape(NETWORKS[name](wrap).init, keys, x) for wrap in (lambda block: block, nn.remat))
    assert shapes(plain) == shapes(wrapped)
    assert shapes(plain["params"]) == shapes(args[0])


@small
def test_loss_and_gradients_are_finite_and_not_zero(name: str):
    _, _, (value, gradients) = plain_step(name)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradients)))
    zero = [path for path, leaf in jax.tree.flatten_with_path(gradients)[0] if not np.any(leaf)]
    assert not zero


def test_batch_statistics_move_towards_the_batch():
    model = make("resnet")
    params, stats, x, labels = model.materialise(seed=0)
    _, new = model.loss(params, stats, x, labels)
    stem = jax.lax.conv_general_dilated(x, params["stem"]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    expected = 0.99 * stats["stem_norm"]["mean"] + 0.01 * stem.mean((0, 1, 2))
    np.testing.assert_allclose(new["stem_norm"]["mean"], expected, rtol=1e-5, atol=1e-6)


def test_dropout_follows_its_key():
    model = make("dropout_mlp")
    params, first, x, labels = model.materialise(seed=0)
    second = jax.random.fold_in(first, 1)
    assert model.loss(params, first, x, labels) == model.loss(params, first, x, labels)
    assert model.loss(params, first, x, labels) != model.loss(params, second, x, labels)


def test_attention_is_causal():
    network = transformer.Transformer(layers=2, width=8, heads=2, vocabulary=16)
    params, tokens, _ = make("transformer").materialise(seed=0)
    changed = tokens.at[:, 5].set((tokens[:, 5] + 1) % 16)
    before, after = (network.apply({"params": params}, t) for t in (tokens, changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert not np.array_equal(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize(
    ("depth", "bottleneck", "convolutions"), [(20, False, 19 + 2), (56, False, 55 + 2), (29, True, 28 + 3)]
)
def test_depth_counts_layers(depth: int, bottleneck: bool, convolutions: int):
    # All layers but the last are convolutions; 1x1 shortcuts are not counted as layers.
    model = resnet.loss(depth=depth, bottleneck=bottleneck, batch=1, image=8, width=4)
    assert count(jax.make_jaxpr(model.loss)(*model.args).jaxpr, {"conv_general_dilated"}) == convolutions


PUBLISHED = {
    "resnet50": (
        lambda: resnet.loss(**resnet.RESNET50, batch=1),
        25_557_032,
    ),
    "vgg16": (lambda: vgg.loss(convolutions=(2, 2, 3, 3, 3), batch=1), 138_357_544),
    "vgg19": (lambda: vgg.loss(batch=1), 143_667_240),
    "mobilenet": (lambda: mobilenet.loss(batch=1), 4_231_976),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_their_published_numbers_of_parameters(name: str):
    make, published = PUBLISHED[name]
    assert sum(leaf.size for leaf in jax.tree.leaves(make().args[0])) == published


def test_factories_allocate_no_model():
    tracemalloc.start()
    transformer.loss(layers=1, width=4096, heads=8, vocabulary=65536)  # 2.4 GB of parameters
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6
    assert sum(x.nbytes for x in jax.live_arrays()) < 50e6


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (resnet.loss, {"depth": 21}, r"depth=21 is not 6n \+ 2.*nearest is 20"),
        (resnet.loss, {"depth": 2}, r"depth=2 is not 6n \+ 2.*nearest is 8"),
        (resnet.loss, {"depth": 50, "bottleneck": True}, r"depth=50 is not 9n \+ 2.*nearest is 47"),
        (resnet.loss, {"stages": (2, 0)}, r"stages=\(2, 0\): one positive number"),
        (resnet.loss, {"stem": "mnist"}, r"stem='mnist'"),
        (resnet.loss, {"batch": 0}, "batch=0.*at least 1"),
        (mlp.loss, {"layers": 0}, "layers=0.*at least 1"),
        (dropout_mlp.loss, {"rate": 1.0}, "rate=1.0"),
        (dropout_mlp.loss, {"width": -1}, "width=-1.*at least 1"),
        (transformer.loss, {"width": 10, "heads": 4}, "heads=4 do not divide width=10"),
        (transformer.loss, {"length": 0}, "length=0.*at least 1"),
        (unet.loss, {"image": 20}, "image=20 cannot be halved 3 times: use a multiple of 8"),
        (unet.loss, {"levels": 0}, "levels=0.*at least 1"),
        (unet.loss, {"image": (8, 8, 8)}, r"image=\(8, 8, 8\): one number, or height and width"),
        (unet.loss, {"image": (16, 20)}, r"image=\(16, 20\) cannot be halved 3 times"),
        (vgg.loss, {"hidden": 0}, "hidden=0.*at least 1"),
        (vgg.loss, {"convolutions": ()}, r"convolutions=\(\): one positive number"),
        (vgg.loss, {"image": 48}, "image=48 cannot be halved 5 times: use a multiple of 32"),
        (vgg_unet.loss, {"image": (8,)}, r"image=\(8,\).*a height and a width"),
        (vgg_unet.loss, {"image": (16, 24)}, r"image=\(16, 24\) cannot be halved 4 times"),
        (mobilenet.loss, {"width": 0}, "width=0.*at least 1"),
        (mobilenet.loss, {"blocks": [(2, 0)]}, r"blocks=\[\(2, 0\)\]: for each block"),
    ],
)
def test_impossible_options_are_named(factory: Any, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        factory(**options)


def test_materialise_is_deterministic_and_in_range():
    args = ({"kernel": floats(400, 100), "bias": floats(100), "scale": floats(100)}, integers(1000), key(), floats(1000))
    first, again, other = materialise(args, 3, classes=7), materialise(args, 3, classes=7), materialise(args, 4, classes=7)
    assert shapes(first) == shapes(args)
    data = [jax.random.key_data(x) if x.dtype == first[2].dtype else x for x in jax.tree.leaves(first)]
    same = [jax.random.key_data(x) if x.dtype == first[2].dtype else x for x in jax.tree.leaves(again)]
    assert all(np.array_equal(a, b) for a, b in zip(data, same, strict=True))
    assert not np.array_equal(first[3], other[3])
    assert set(np.unique(first[1])) == set(range(7))
    assert np.std(first[0]["kernel"]) == pytest.approx(1 / 20, rel=0.02)
    assert np.mean(first[0]["scale"]) == pytest.approx(1, abs=0.05)
    assert np.min(first[0]["scale"]) > 0
