"""What a registry keeps of schemas: at most so many bytes, of those that were used last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.bounded_cache import BoundedCache

KEYS = st.integers(0, 12)


@given(
    bytes_max=st.integers(0, 100),
    calls=st.lists(st.tuples(st.sampled_from("pgd"), KEYS, st.integers(0, 120)), max_size=60),
)
def test_it_never_holds_more_than_its_bound(bytes_max: int, calls: list[tuple[str, int, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(bytes_max)
    sizes: dict[int, int] = {}
    for call, key, size in calls:
        if call == "p":
            cache.put(key, size, size)
            sizes[key] = size
        elif call == "d":
            cache.drop(key)
        elif (found := cache.get(key)) is not None:
            assert found == sizes[key]
        held = sum(sizes[each] for each in range(13) if each in cache)
        assert cache.bytes_now == held <= bytes_max


def test_what_was_used_last_stays() -> None:
    cache: BoundedCache[str, str] = BoundedCache(10)
    for key in "abc":
        cache.put(key, key, 3)
    assert cache.get("a") == "a"
    cache.put("d", "d", 4)
    assert [key for key in "abcd" if key in cache] == ["a", "c", "d"]
