"""When requests begin, and what the server's counts look like to Prometheus."""

from __future__ import annotations

import asyncio

from samevec.server.http.pace import Pace


def test_so_many_begin_in_each_turn_of_the_loop_in_order() -> None:
    begun: list[int] = []
    seen: list[int] = []

    async def run() -> None:
        pace = Pace(per_turn=3)
        for number in range(10):
            pace.begin(lambda number=number: begun.append(number))  # type: ignore[misc]
        while len(begun) < 10:
            seen.append(len(begun))
            await asyncio.sleep(0)

    asyncio.run(run())
    assert begun == list(range(10))
    assert seen[0] == 3
    assert all(later - earlier <= 3 for earlier, later in zip(seen, [*seen[1:], 10], strict=True))


def test_who_waits_for_a_turn_may_go() -> None:
    begun: list[int] = []

    async def one(pace: Pace, number: int) -> None:
        await pace.turn()
        begun.append(number)

    async def run() -> None:
        pace = Pace(per_turn=1)
        tasks = [asyncio.create_task(one(pace, number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await one(pace, 9)

    asyncio.run(run())
    assert begun == [0, 1, 3, 4, 9]


def test_what_fails_to_begin_keeps_nothing_from_beginning() -> None:
    told: list[object] = []
    empty: list[int] = []
    begun: list[int] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        pace = Pace(per_turn=1)
        pace.begin(lambda: None)
        pace.begin(empty.pop)
        pace.begin(lambda: begun.append(1))
        while not begun:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert [type(error) for error in told] == [IndexError]
