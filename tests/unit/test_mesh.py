"""Mesh: construction, places, groups, submeshes, topologies."""

import copy
import pickle
from enum import StrEnum

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import MeshError


def test_all_ways_to_make_a_mesh_agree():
    mesh = sw.Mesh(data=2, model=4)
    assert mesh == sw.Mesh({"data": 2, "model": 4}) == sw.Mesh((2, 4), ("data", "model"))
    assert mesh == sw.Mesh((2, -1), ("data", "model"), devices=8) == sw.Mesh(data=-1, model=4, devices=range(8))
    assert hash(mesh) == hash(sw.Mesh((2, 4), ["data", "model"]))
    assert (mesh.axis_names, mesh.shape, mesh.size) == (("data", "model"), (2, 4), 8)
    assert mesh.sizes["data"] == 2
    assert mesh != sw.Mesh(model=4, data=2)
    assert mesh != sw.Mesh(data=2, model=4, devices=[1, 0, 2, 3, 4, 5, 6, 7])
    assert mesh != sw.Mesh(data=2, model=4, links=sw.Link("line"))
    assert mesh != "a mesh"


def test_a_mesh_is_a_value():
    mesh = sw.Mesh(x=2, y=2, devices=[3, 1, 2, 0], links={"x": sw.Link("line", 1e9)})
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert copy.deepcopy(mesh) == mesh
    with pytest.raises(AttributeError, match=r"A Mesh is immutable; make a new one instead of setting 'size'"):
        mesh.size = 3
    with pytest.raises(AttributeError, match=r"immutable"):
        del mesh.size
    with pytest.raises(TypeError):
        mesh.sizes["x"] = 3
    link = "Link(kind='line', bandwidth=1000000000.0, latency=1e-06)"
    assert repr(mesh) == f"Mesh(x=2, y=2, devices=(3, 1, 2, 0), links={{'x': {link}}})"


def read_back(text):
    return eval(text, {"Mesh": sw.Mesh, "Link": sw.Link, "Sharding": sw.Sharding, "P": sw.P})


class Axis(StrEnum):
    DATA = "data"


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (sw.Mesh(data=2, model=4), "Mesh(data=2, model=4)"),
        (sw.Mesh(x=1, devices=[5]), "Mesh(x=1, devices=(5,))"),
        (sw.Mesh(x=9, devices=range(1, 10)), "Mesh(x=9, devices=range(1, 10))"),
        (sw.Mesh(x=9, devices=range(8, -1, -1)), "Mesh(x=9, devices=range(8, -1, -1))"),
        (sw.Mesh(x=9, devices=[0, 1, 2, 3, 9, 8, 6, 4, 2**62]),
         f"Mesh(x=9, devices=(*range(0, 4), 9, *range(8, 3, -2), {2**62}))"),
        (sw.Mesh(x=4, y=4).submesh((4, 3)),
         "Mesh(x=4, y=3, devices=(*range(0, 3), *range(4, 7), *range(8, 11), *range(12, 15)))"),
        (sw.Mesh({"lambda": 2}), "Mesh({'lambda': 2})"),
        (sw.Mesh({"devices": 2, "links": 1, "engine": 1}), "Mesh({'devices': 2, 'links': 1, 'engine': 1})"),
        (sw.Mesh({"shape": 2, "axis_names": 1, "self": 1}), "Mesh(shape=2, axis_names=1, self=1)"),
        (sw.Mesh({"__debug__": 2}), "Mesh({'__debug__': 2})"),
        (sw.Mesh({"a-b": 2, "y": 3}, devices=[5, 4, 3, 2, 1, 0]), "Mesh({'a-b': 2, 'y': 3}, devices=(5, 4, 3, 2, 1, 0))"),
        (sw.Mesh({"ﬁ": 2, "µ": 2, "2d": 1, "it's": 1}), "Mesh({'ﬁ': 2, 'µ': 2, '2d': 1, \"it's\": 1})"),
        (sw.Mesh({np.str_("x"): np.int64(2), Axis.DATA: 2}, devices=np.array([3, 2, 1, 0])),
         "Mesh(x=2, data=2, devices=(3, 2, 1, 0))"),
        (sw.Mesh(x=2, engine="literal"), "Mesh(x=2, engine='literal')"),
        (sw.Mesh(x=2, y=2, links=sw.Link("line")),
         "Mesh(x=2, y=2, links=Link(kind='line', bandwidth=100000000000.0, latency=1e-06))"),
        (sw.Mesh(x=2, y=2, links={"y": sw.Link(bandwidth=np.float32(8), latency=0)}),
         "Mesh(x=2, y=2, links={'y': Link(kind='ring', bandwidth=8.0, latency=0.0)})"),
        (sw.Mesh(x=2, links=sw.Link(bandwidth=float("inf"))),
         "Mesh(x=2, links=Link(kind='ring', bandwidth=float('inf'), latency=1e-06))"),
        (sw.Mesh(x=2, links={"x": sw.Link()}), "Mesh(x=2)"),
    ],
)  # fmt: skip
def test_the_repr_of_a_mesh_is_all_of_it_and_reads_back(mesh, text):
    assert repr(mesh) == text
    assert read_back(text) == mesh
    sharding = sw.Sharding(mesh, sw.P(mesh.axis_names[0]), partial=mesh.axis_names[1:])
    assert read_back(repr(sharding)) is sharding


def test_names_of_any_kind_of_string_are_one_axis():
    link = sw.Link("line")
    mesh = sw.Mesh({Axis.DATA: 2}, links={Axis.DATA: link})
    assert mesh == sw.Mesh(data=2, links={"data": link})
    assert [type(name) for name in mesh.axis_names] == [str]
    for name in (Axis.DATA, np.str_("data"), "data"):
        assert sw.Sharding(mesh, sw.P(name)) is sw.Sharding(mesh, sw.P("data"))
        assert mesh.groups(name) == [(0, 1)]


def test_the_repr_of_long_ids_is_exact_and_messages_are_short():
    ids = np.random.default_rng(0).permutation(10_000).tolist()
    mesh = sw.Mesh(x=10_000, devices=ids)
    assert read_back(repr(mesh)) == mesh
    assert str(mesh) == f"Mesh(x=10000, devices=({', '.join(map(str, ids[:8]))}, …))"
    assert repr(sw.Mesh(x=1024, y=1024).submesh((2, 1024))) == "Mesh(x=2, y=1024)"
    with pytest.raises(
        MeshError, match=r"'y' is not an axis of Mesh\(x=10000, devices=\([\d, ]+, …\)\); its axes are 'x'"
    ):
        mesh.axis("y")
    assert f"{sw.Mesh(x=2, links=sw.Link('line'))}" == repr(sw.Mesh(x=2, links=sw.Link("line")))


def test_a_mesh_has_a_million_devices_at_most(monkeypatch):
    def listed(*args):
        raise AssertionError("the devices are listed")

    monkeypatch.setattr(sw.Mesh, "ids", listed)
    mesh = sw.Mesh(x=2**19, y=2)
    assert mesh.size == 1_048_576
    assert mesh == sw.Mesh(x=-1, y=2, devices=range(2**20))
    assert mesh.coords(2**20 - 1) == (2**19 - 1, 1)
    assert mesh.neighbors(4, "x") == (2, 6)
    assert mesh.neighbors(2**20 - 1, ("y", "x")) == (2**20 - 3, None)
    assert tuple(mesh.submesh((1, 2), offset=(2**19 - 1, 0)).device_ids) == (2**20 - 2, 2**20 - 1)
    assert sw.Sharding(mesh, sw.P("x"), halo={0: 1}).for_shape((2**20,)).halo == ((1, 1),)
    logical = {"a": 2**5, "b": 2**5, "c": 2**5, "d": 2**5}
    assert sw.Mesh.on_topology((2,) * 20, logical).neighbors(33, "d") == (32, 34)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: sw.Mesh(x=2**20 + 1),
            r"Axis 'x' has 1,048,577 devices; a mesh has at most 1,048,576, .* Use smaller sizes",
        ),
        (lambda: sw.Mesh(x=10**9), r"Axis 'x' has 1,000,000,000 devices"),
        (lambda: sw.Mesh(x=2**70), r"Axis 'x' has 1,180,591,620,717,411,303,424 devices"),
        (lambda: sw.Mesh(x=10**5000), r"Axis 'x' has more than 10\^30 devices"),
        (lambda: sw.Mesh(x=2**10, y=2**11), r"Mesh\(x=1024, y=2048\) has 2,097,152 devices; a mesh has at most"),
        (lambda: sw.Mesh({str(n): 2**20 for n in range(64)}), r"has more than 10\^30 devices"),
        (lambda: sw.Mesh((2**40, 2), ("x", "y")), r"Axis 'x' has 1,099,511,627,776 devices"),
        (lambda: sw.Mesh(x=-1, devices=10**9), r"devices= has 1,000,000,000 devices"),
        (lambda: sw.Mesh(x=2, devices=10**5000), r"devices= has more than 10\^30 devices"),
        (lambda: sw.Mesh(x=-1, devices=range(2**70)), r"devices= has 1,180,591,620,717,411,303,424 devices"),
        (lambda: sw.Mesh(x=-1, devices=range(5, 10**9, 2)), r"devices= has 499,999,998 devices"),
        (
            lambda: sw.Mesh.on_topology((10**9, 2), {"x": 10**9, "y": 2}),
            r"The physical topology has 2,000,000,000 devices",
        ),
        (lambda: sw.Mesh.on_topology((2**70,), {"x": 2**70}, True), r"has 1,180,591,620,717,411,303,424 devices"),
        (lambda: sw.Mesh(x=1, devices=[2**63]), r"Device ids must be different and not negative, in 64 bits; got 9223"),
        (lambda: sw.Mesh(x=2, devices=2.5), r"devices is 2.5; give the number of devices, or a sequence of their ids"),
        (lambda: sw.Mesh(x=2, devices=(n for n in (0, 1))), r"devices is <generator .*; give the number of devices"),
        (lambda: sw.Link(bandwidth="fast"), r"A link's bandwidth is 'fast', which is not a number"),
        (lambda: sw.Link(latency=None), r"A link's latency is None, which is not a number"),
        (lambda: sw.Link(bandwidth=float("nan")), r"A link's bandwidth is nan; give a number above 0"),
    ],
)
def test_too_many_devices_are_refused_at_once(make, text):
    with pytest.raises(MeshError, match=text):
        make()


def test_groups_are_in_group_order():
    mesh = sw.Mesh(data=2, model=4)
    assert mesh.groups("data") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert mesh.groups("model") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert mesh.groups("model", "data") == mesh.groups(("model", "data")) == [(0, 4, 1, 5, 2, 6, 3, 7)]
    assert mesh.groups("data", "model") == [tuple(range(8))]
    assert mesh.groups() == [(i,) for i in range(8)]
    assert mesh.groups("model:(1)2") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert mesh.groups("model:(2)2") == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_the_example_of_the_mesh_dialect():
    """A 2×3×4×5 mesh, axes [0, 1]: devices (1, 0, 2, 3) and (1, 1, 2, 3) share a group, (1, 0, 2, 4) does not."""
    mesh = sw.Mesh((2, 3, 4, 5), ("a", "b", "c", "d"))
    groups = mesh.groups("a", "b")
    assert len(groups) == 20
    home = next(group for group in groups if mesh.index((1, 0, 2, 3)) in group)
    assert mesh.index((1, 1, 2, 3)) in home
    assert mesh.index((1, 0, 2, 4)) not in home
    other = next(group for group in mesh.groups("d", "b") if mesh.index((0, 1, 2, 0)) in group)
    at = [other.index(mesh.index((0, *rest))) for rest in ((1, 2, 0), (0, 2, 1), (2, 2, 0))]
    assert at[0] < at[1]
    assert at[0] < at[2]


def test_places_and_neighbours():
    mesh = sw.Mesh(data=2, model=4)
    assert mesh.coords(5) == (1, 1)
    assert mesh.index((1, 1)) == 5
    assert [mesh.index(mesh.coords(d)) for d in range(8)] == list(range(8))
    assert mesh.neighbors(5, "model") == (4, 6)
    assert mesh.neighbors(4, "model") == (None, 5)
    assert mesh.neighbors(5, "data") == (1, None)
    assert mesh.neighbors(3, ("data", "model")) == (2, 4)
    assert mesh.neighbors(3, ()) == (None, None)


def test_submeshes_share_their_parents_ids():
    mesh = sw.Mesh(data=2, model=4)
    part = mesh.submesh((2, 2), offset=(0, 2))
    assert tuple(part.device_ids) == (2, 3, 6, 7)
    assert part.axis_names == mesh.axis_names
    assert part.coords(6) == (1, 0)
    assert part.index((1, 1)) == 7
    assert part.groups("data") == [(2, 6), (3, 7)]
    assert [tuple(p.device_ids) for p in mesh.submeshes((2, 2))] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [tuple(p.device_ids) for p in mesh.submeshes((1, 2))] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert tuple(part.submesh((1, 2), offset=(1, 0)).device_ids) == (6, 7)
    assert mesh.submesh((2, 4)) == mesh


def test_links():
    mesh = sw.Mesh(x=2, y=2, links={"y": sw.Link("line", bandwidth=1e9, latency=0)})
    assert mesh.links["x"] == sw.Link()
    assert mesh.links["y"].kind == "line"
    assert mesh.submesh((1, 2)).links == mesh.links
    with pytest.raises(MeshError, match=r"Link kind 'star' is unknown. Use one of ring, line, switch, torus, full"):
        sw.Link("star")
    with pytest.raises(MeshError, match=r"A link's bandwidth is 0; give a number above 0"):
        sw.Link(bandwidth=0)
    with pytest.raises(MeshError, match=r"links names axis 'z'"):
        sw.Mesh(x=2, links={"z": sw.Link()})


def test_a_topology_is_laid_on_whole_physical_axes():
    mesh = sw.Mesh.on_topology(physical=(4, 4, 4), logical={"data": 16, "model": 4})
    assert mesh.shape == (16, 4)
    assert mesh.groups("model")[0] == (0, 1, 2, 3)
    assert mesh.links["data"].kind == "torus"
    assert mesh.links["model"] == sw.Link()
    assert sorted(mesh.device_ids) == list(range(64))
    turned = sw.Mesh.on_topology(physical=(2, 8), logical={"a": 8, "b": 2})
    assert turned.groups("b")[0] == (0, 8)


def test_a_topology_that_needs_a_split_is_refused_and_says_why():
    with pytest.raises(MeshError) as error:
        sw.Mesh.on_topology(physical=(4, 4, 4), logical={"data": 8, "model": 8})
    text = str(error.value)
    assert "data=8, model=8 does not fit the physical topology 4×4×4 without splitting" in text
    assert "data=8 and model=8 is not a product of entire physical axes, which give [1, 4, 16, 64]" in text
    assert "split_physical_axes=True" in text
    mesh = sw.Mesh.on_topology((4, 4, 4), {"data": 8, "model": 8}, split_physical_axes=True)
    assert mesh.shape == (8, 8)
    assert sorted(mesh.device_ids) == list(range(64))
    # data takes a whole axis and the outer half of another: the half shares wires, so half the bandwidth
    assert mesh.links["data"] == sw.Link("line", sw.Link().bandwidth / 2)
    with pytest.raises(MeshError, match=r"has 32 devices, the physical topology 4×4×4 has 64"):
        sw.Mesh.on_topology((4, 4, 4), {"data": 8, "model": 4})
    with pytest.raises(MeshError, match=r"need positive sizes"):
        sw.Mesh.on_topology((4, 0), {"data": 0})
    with pytest.raises(MeshError, match=r"the entire physical axes can't be divided among them"):
        sw.Mesh.on_topology((2, 2, 8), {"a": 2, "b": 4, "c": 4})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sw.Mesh(x=0), r"Axis 'x' has size 0; a size is a positive integer, or -1"),
        (lambda: sw.Mesh(x=-2), r"Axis 'x' has size -2"),
        (lambda: sw.Mesh(x=2.0), r"Axis 'x' has size 2.0"),
        (lambda: sw.Mesh(x=True), r"Axis 'x' has size True"),
        (lambda: sw.Mesh(x=-1), r"leaves a size open. Pass devices="),
        (lambda: sw.Mesh(x=-1, y=-1, devices=8), r"leaves 2 sizes open; only one can be -1"),
        (lambda: sw.Mesh(x=-1, y=3, devices=8), r"can't hold 8 devices: 8 is not a multiple of 3"),
        (lambda: sw.Mesh(x=2, y=3, devices=8), r"has 6 positions, but there are 8 devices"),
        (lambda: sw.Mesh(x=2, devices=[0, 1, 2]), r"has 2 positions, but there are 3 devices"),
        (lambda: sw.Mesh(x=2, devices=[1, 1]), r"Device ids must be different"),
        (lambda: sw.Mesh(x=2, devices=[-1, 1]), r"Device ids must be different and not negative"),
        (lambda: sw.Mesh((2, 2), ("x",)), r"2 sizes \(2, 2\) but 1 axis names"),
        (lambda: sw.Mesh((2, 2), ("x", "x")), r"Axis 'x' is named 2 times"),
        (lambda: sw.Mesh((2, 2)), r"A mesh needs sizes and names"),
        (lambda: sw.Mesh((2,), "x"), r"axis_names is the string 'x'"),
        (lambda: sw.Mesh({"x": 2}, ("x",)), r"A mapping already names the axes"),
        (lambda: sw.Mesh((2,), ("x",), y=2), r"Axes were given twice"),
        (lambda: sw.Mesh(), r"A mesh has at least one axis"),
        (lambda: sw.Mesh({f"a{i}": 1 for i in range(33)}), r"33 axes are more than the 32 that a mesh may have"),
        (lambda: sw.Mesh({"a b": 2}), r"'a b' can't name a mesh axis"),
        (lambda: sw.Mesh({3: 2}), r"3 can't name a mesh axis"),
        (lambda: sw.Mesh(x=2).groups("y"), r"'y' is not an axis of Mesh\(x=2\); its axes are 'x'"),
        (lambda: sw.Mesh(x=2).groups("x", "x"), r"name devices along 'x' twice"),
        (lambda: sw.Mesh(x=8).groups("x", "x:(1)2"), r"name devices along 'x' twice"),
        (lambda: sw.Mesh(x=8).groups("x:(1)3"), r"'x:\(1\)3' is not a piece of axis 'x' of size 8"),
        (lambda: sw.Mesh(x=8).groups("x:(2)1"), r"it needs a size of at least 2"),
        (lambda: sw.Mesh(x=12).groups("x:(1)2", "x:(3)2"), r"no common cut exists"),
        (lambda: sw.Mesh(x=2).groups(3), r"Axes are a name or a sequence of names, in order; 3 is neither"),
        (lambda: sw.Mesh(x=2).groups([3]), r"Axes are named by strings; 3"),
        (lambda: sw.Mesh(x=2).coords(2), r"Device 2 is not in Mesh\(x=2\). Its 2 devices are 0, 1"),
        (lambda: sw.Mesh(x=2, devices=[4, 5]).coords(0), r"Device 0 is not in .* 4, 5"),
        (lambda: sw.Mesh(x=2).index((2,)), r"Coordinate 2 along axis 'x' is out of range"),
        (lambda: sw.Mesh(x=2).index((-1,)), r"Coordinate -1 along axis 'x' is out of range"),
        (lambda: sw.Mesh(x=2).index((0, 0)), r"Coordinates \(0, 0\) have 2 entries"),
        (lambda: sw.Mesh(x=2).neighbors(7, "x"), r"Device 7 is not in"),
        (lambda: sw.Mesh(x=2, y=4).submesh((2, 3), (0, 2)), r"does not fit in .* along 'y' it covers 2 to 5 of 4"),
        (lambda: sw.Mesh(x=2, y=4).submesh((0, 1)), r"Every size must be positive"),
        (lambda: sw.Mesh(x=2, y=4).submesh((2,)), r"The submesh shape \(2,\) has 1 entries"),
        (lambda: sw.Mesh(x=2, y=4).submeshes((2, 3)), r"4 devices along 'y' are not a multiple of 3"),
    ],
)
def test_bad_meshes_say_what_is_wrong(make, text):
    with pytest.raises((MeshError, TypeError), match=text):
        make()
