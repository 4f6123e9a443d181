"""The repr of a mesh or a sharding is an expression that gives it back."""

import keyword
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.hardware.links import KINDS
from strategies import shapes, shardings

pytestmark = pytest.mark.parametrize("engine", ["numpy"], indirect=True)  # nothing runs on an engine

NAMES = st.one_of(
    st.text(st.characters(exclude_characters=":@,+/~{}[]() \t\n"), min_size=1, max_size=4),
    st.sampled_from(keyword.kwlist),
    st.sampled_from(
        [
            "devices",
            "engine",
            "device",
            "timeout",
            "links",
            "shape",
            "axis_names",
            "self",
            "sizes",
            "__debug__",
            "match",
        ]
    ),
)
LINKS = st.builds(
    sw.Link,
    st.sampled_from(KINDS),
    st.floats(min_value=0, exclude_min=True) | st.integers(1, 10**12),
    st.floats(min_value=0, allow_infinity=False),
)


@st.composite
def any_meshes(draw):
    """A mesh with any names, ids, links and engine."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    sizes = {name: draw(st.integers(1, 4)) for name in names}
    count = math.prod(sizes.values())
    start, step = draw(st.integers(0, 9)), draw(st.integers(1, 3))
    ids = draw(
        st.none()
        | st.permutations(range(count))
        | st.just(range(start, start + step * count, step))
        | st.just(range(start + step * (count - 1), start - 1, -step))
        | st.lists(st.integers(0, 2**63 - 1), min_size=count, max_size=count, unique=True)
    )
    links = draw(st.none() | LINKS | st.dictionaries(st.sampled_from(names), LINKS))
    engine, device = draw(st.sampled_from([("numpy", "cpu"), ("literal", "cpu"), ("it's", "cpu"), ("torch", "cuda")]))
    timeout = draw(st.none() | st.floats(0.1, 100))
    return sw.Mesh(sizes, devices=ids, engine=engine, device=device, timeout=timeout, links=links)


def read_back(value):
    return eval(repr(value), {"Mesh": sw.Mesh, "Link": sw.Link, "Sharding": sw.Sharding, "P": sw.P})


@settings(max_examples=400)
@given(mesh=any_meshes())
def test_a_mesh_reads_back(mesh):
    again = read_back(mesh)
    assert again == mesh
    assert hash(again) == hash(mesh)
    assert repr(again) == repr(mesh)
    assert (again.links, again.engine, list(again.device_ids)) == (mesh.links, mesh.engine, list(mesh.device_ids))


@settings(max_examples=200)
@given(mesh=any_meshes(), link=LINKS)
def test_every_part_of_a_mesh_shows(mesh, link):
    parts = {"devices": list(mesh.device_ids), "engine": mesh.engine, "device": mesh.device, "links": mesh.links}
    others = [
        sw.Mesh(mesh.sizes, **{**parts, "devices": [*mesh.device_ids][::-1]}),
        sw.Mesh(mesh.sizes, **{**parts, "engine": "another"}),
        sw.Mesh(mesh.sizes, **{**parts, "engine": "torch", "device": "cuda:1"}),
        sw.Mesh(mesh.sizes, **{**parts, "links": {**mesh.links, mesh.axis_names[-1]: link}}),
        sw.Mesh({**mesh.sizes, mesh.axis_names[0]: 2 * mesh.shape[0]}),
        sw.Mesh({"another": 1, **mesh.sizes}, **parts),
    ]
    for other in others:
        assert (repr(other) == repr(mesh)) == (other == mesh)


@settings(max_examples=200)
@given(data=st.data(), mesh=any_meshes(), shape=shapes(max_dims=3))
def test_a_sharding_reads_back(data, mesh, shape):
    sharding = data.draw(shardings(mesh, shape))
    reduction = data.draw(st.sampled_from(["sum", "max", "product"]))
    for value in (sharding, sharding.for_shape(shape), sharding.replace(reduction=reduction)):
        assert read_back(value) is value
        assert read_back(value.spec) == value.spec
