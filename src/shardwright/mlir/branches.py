"""Two branches that devices take by a condition of their own, walked in step up to their ends."""

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
from xdsl.ir import Operation

from shardwright import collectives as c
from shardwright.errors import MLIRError
from shardwright.mlir.communication import Request
from shardwright.mlir.fields import axes, short_name
from shardwright.mlir.values import LocalView, Value

Walk = Generator[Request, Value, list[Value]]


def path_shown(source: Any, path: Iterable[Operation]) -> str:
    """The collectives that a path comes to."""
    return " → ".join(f"{short_name(op)} {list(axes(op))} (line {source.line_number(op)})" for op in path) or "none"


class Apart:
    """Two branches that devices take by a condition of their own, walked in step."""

    def __init__(self, reader: Any, op: Operation, test: Value) -> None:
        self.reader, self.op, self.test = reader, op, test
        self.paths: tuple[list[Operation], list[Operation]] = ([], [])

    def walk(self, one: Walk, two: Walk) -> Walk:
        """Both branches to their ends; what each device gets is what its own branch gives."""
        left, right = self._next(one, None), self._next(two, None)
        while isinstance(left, Request) or isinstance(right, Request):
            for path, request in zip(self.paths, (left, right), strict=True):
                if isinstance(request, Request) and (not path or path[-1] is not request.op):
                    path.append(request.op)
            if self._is_alike(left) or self._is_alike(right):  # what the branch not taken computes is dropped
                if isinstance(left, Request) and self._is_alike(left):
                    left = self._next(one, (yield left))
                if isinstance(right, Request) and self._is_alike(right):
                    right = self._next(two, (yield right))
                continue
            if not isinstance(left, Request) or not isinstance(right, Request):
                raise self._refused()
            answers = yield from self._together(left, right)
            left, right = self._next(one, answers[0]), self._next(two, answers[1])
        return [self.reader.chosen(self.op, self.test, a, b) for a, b in zip(left, right, strict=True)]

    def _is_alike(self, request: "Request | list[Value]") -> bool:
        """Whether the devices of every group that takes part in a collective take the same branch, and only the data says
        which. A condition on coordinates is held to more: all devices come to the same collectives in the same order."""
        if not isinstance(request, Request) or self.reader.view.per_device(self.test) is not None:
            return False
        return not set(self.test.varies) & set(request.collective.axes)

    def _next(self, walk: Walk, answer: Value | None) -> "Request | list[Value]":
        try:
            return next(walk) if answer is None else walk.send(answer)
        except StopIteration as stop:
            made: list[Value] = stop.value
            return made

    def _together(self, left: Request, right: Request) -> "Generator[Request, Value, tuple[Value, Value]]":
        """The results of what two branches ask for at the same time."""
        kinds = type(left.collective), type(right.collective)
        if left.signature == right.signature and not set(kinds) & {c.Send, c.Recv}:
            value = self.reader.chosen(self.op, self.test, left.value, right.value)
            made = yield Request(left.op, left.collective, value)
            return made, made
        if set(kinds) == {c.Send, c.Recv} and left.collective.axes == right.collective.axes:
            sends_first = kinds == (c.Send, c.Recv)
            send, recv = (left, right) if sends_first else (right, left)
            self._check_transfer(send.collective, recv.collective, sends_first)
            yield send
            made = yield recv
            return (send.value, made) if sends_first else (made, send.value)
        raise self._refused()

    def _check_transfer(self, send: c.Send, recv: c.Recv, sent_if: bool) -> None:
        """In every group the source takes the branch that sends, and the destination the one that receives."""
        view, mesh, source = self.reader.view, self.reader.mesh, self.reader.source
        if c.is_per_device(send.destination) or c.is_per_device(recv.source):
            raise source.error(
                "A send and its recv in two branches need one destination and one source. Move a transfer whose ends differ "
                "between devices out of the branches.",
                self.op,
            )
        assert isinstance(view, LocalView)
        known = view.per_device(self.test)
        if known is None:
            raise source.error(
                "A send and its recv in two branches need a condition that does not depend on data.", self.op
            )
        sizes = [mesh.sizes[axis] for axis in send.axes]
        others = [at for at in np.ndindex(*sizes) if at != send.destination]
        sender = recv.source if recv.source is not None else others[0] if len(others) == 1 else None
        if sender is None:
            raise source.error(
                f"The recv names no source, and {len(others)} devices of a group could send. Name one.", self.op
            )
        for group in mesh.groups(send.axes):
            for coords, branch in ((sender, sent_if), (send.destination, not sent_if)):
                place = mesh.position(group[int(np.ravel_multi_index(coords, sizes))])
                if bool(known[place]) != branch:
                    raise source.error(
                        f"Device {place} is the {'source' if branch == sent_if else 'destination'} of a transfer, but it takes "
                        f"the branch with the {'recv' if branch == sent_if else 'send'}, so the transfer would never happen. "
                        f"Correct the condition or the device.",
                        self.op,
                    )

    def _refused(self) -> MLIRError:
        source = self.reader.source
        shown = [path_shown(source, path) for path in self.paths]
        error: MLIRError = source.error(
            f"Devices take different branches here, and the branches come to different collectives, so devices would wait "
            f"for one another for ever. Then: {shown[0]}. Else: {shown[1]}. Move the collectives out of the branches, or "
            f"make both branches do the same ones in the same order.",
            self.op,
        )
        return error
