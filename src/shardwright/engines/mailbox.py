"""Open sends: what was sent and not yet received. On real devices an open send would wait for ever, so it is an error."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import Collective, Permute, Recv, Scatter, Send, is_per_device
from shardwright.errors import CollectiveError
from shardwright.mesh import Mesh
from shardwright.plan import LocalStep


class Mailbox:
    """The open sends of each thread and mesh. A recv takes the oldest send over its axes."""

    def __init__(self) -> None:
        self._open = threading.local()

    def _sends(self, mesh: Mesh) -> list[tuple[Send, Any]]:
        boxes: dict[Mesh, list[tuple[Send, Any]]] = self._open.__dict__.setdefault("boxes", {})
        return boxes.setdefault(mesh, [])

    def send(self, mesh: Mesh, send: Send, value: Any) -> None:
        """Something is on its way."""
        self._sends(mesh).append((send, value))

    def forget(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self._sends(mesh).clear()

    def check(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send is open, and forget it."""
        sends = self._sends(mesh)
        if sends:
            send = sends[0][0]
            sends.clear()
            raise CollectiveError(
                f"send over {send.axes} to destination {send.destination} has no matching recv over {send.axes} "
                f"{when}: on real devices it would wait for ever. Follow it with recv(v, {send.axes}, source=…)."
            )

    def match(self, mesh: Mesh, recv: Recv) -> tuple[Any, Permute]:
        """What was sent, and the transfer that brings it from its source to its destination."""
        sends = self._sends(mesh)
        match = next((i for i, (send, _) in enumerate(sends) if send.axes == recv.axes), None)
        if match is None:
            open_sends = [f"to {send.destination} over {send.axes}" for send, _ in sends]
            sends.clear()
            raise CollectiveError(
                f"recv over {recv.axes} from source {recv.source if recv.source is not None else 'any'} has no matching send "
                f"(open sends: {', '.join(open_sends) or 'none'}): on real devices it would wait for ever. "
                f"Precede it with send(v, {recv.axes}, destination=…)."
            )
        send, value = sends[match]
        if is_per_device(send.destination) or is_per_device(recv.source):
            transfer = self._permutation(mesh, send, recv)
        else:
            source = recv.source if recv.source is not None else self._only_other(mesh, send)
            transfer = Permute(recv.axes, ((source, send.destination),))
        del sends[match]
        return value, transfer

    def _permutation(self, mesh: Mesh, send: Send, recv: Recv) -> Permute:
        """The transfer in which every device sends to the one that it names and gets from the one that it names."""
        target = _named(mesh, send.axes, send.destination)
        source = np.argsort(target) if recv.source is None else _named(mesh, recv.axes, recv.source)
        for place, sender in enumerate(source):
            if target[sender] != place:
                self._sends(mesh).clear()
                raise CollectiveError(
                    f"recv over {recv.axes}: device {place} waits for device {sender}, which sends to device "
                    f"{target[sender]}. Where ends differ between devices, each gets from one that sends to it."
                )
        return _by_pairs(mesh, send.axes, target)

    def _only_other(self, mesh: Mesh, send: Send) -> tuple[int, ...]:
        shape = [mesh.axis(axis).size for axis in send.axes]
        others = [at for at in np.ndindex(*shape) if at != send.destination]
        if len(others) != 1:
            self._sends(mesh).clear()
            raise CollectiveError(
                f"recv over {send.axes} without a source: {len(others)} members could have sent to "
                f"{send.destination}. Name one with source=."
            )
        return others[0]


def _named(mesh: Mesh, axes: tuple[str, ...], ends: Any) -> NDArray[np.int64]:
    """For every place the place of the group member that it names."""
    groups, shape = _groups(mesh, axes), [mesh.axis(axis).size for axis in axes]
    each = ends if is_per_device(ends) else (ends,) * mesh.size
    numbers = np.ravel_multi_index(np.transpose(each), shape)
    result = np.empty(mesh.size, np.int64)
    for group in groups:
        result[group] = group[numbers[group]]
    return result


def _by_pairs(mesh: Mesh, axes: tuple[str, ...], target: NDArray[np.int64]) -> Permute:
    """Every place's target as pairs in a group; of the whole mesh, where groups differ."""
    groups = _groups(mesh, axes)
    number = np.empty(mesh.size, np.int64)
    number[groups] = np.arange(groups.shape[1])
    if (number[target[groups]] != number[target[groups[0]]]).any():
        return _by_pairs(mesh, mesh.axis_names, target)
    shape = [mesh.axis(axis).size for axis in axes]
    ends = zip(*np.unravel_index(number[target[groups[0]]], shape), strict=True)
    pairs = zip(np.ndindex(*shape), (tuple(map(int, end)) for end in ends), strict=True)
    return Permute(axes, tuple(pairs))


def _groups(mesh: Mesh, axes: tuple[str, ...]) -> NDArray[np.int64]:
    return np.asarray([[mesh.position(device) for device in group] for group in mesh.groups(axes)])


def received(mailbox: Mailbox, recv: Recv, expected: Any) -> tuple[Any, Permute]:
    """What a recv gets from the send that matches it, and the transfer; both ends must agree on shape and dtype."""
    sent, transfer = mailbox.match(expected.mesh, recv)
    LocalStep(transfer, sent.local_shapes, sent.dtype).check_ends(expected.local_shapes, expected.dtype)
    return sent, transfer


def step_of(mailbox: Mailbox, collective: Collective, view: Any) -> tuple[LocalStep | None, Any]:
    """The step of a collective on a tensor per device, and the tensors that it reads: for a recv those that were sent. A send
    alone has no step (None): its tensors move when the recv is called."""
    mesh = view.mesh
    if isinstance(collective, Send | Recv):
        bound: Any = collective.bind(mesh, view.local_shapes.shapes[0], view.dtype)
        if isinstance(bound, Send):
            mailbox.send(mesh, bound, view)
            return None, view
        view, collective = received(mailbox, bound, view)
    else:
        mailbox.check(mesh, f"before {collective.name}")
    for shape in dict.fromkeys(view.local_shapes.shapes):
        bound = collective.bind(mesh, shape, view.dtype, uneven=isinstance(collective, Scatter))
    step = LocalStep(bound, view.local_shapes, view.dtype)
    step.check()
    return step, view
