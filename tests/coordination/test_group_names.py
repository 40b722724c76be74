"""Ids of groups in ZooKeeper: any text is one element of a path, no two share one, and plain ones keep their
nodes.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fix_zookeeper import ZooKeeperRoom, has_topics
from headrace.coordination import znodes
from headrace.coordination.consumers import ConsumerRegistry, groups

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
ODD_NAMES = (
    *(
        "a/b",
        "/",
        "/a",
        "a/",
        ".",
        "..",
        "...",
        "../../x",
        " ",
        "two words",
        "tab\t",
        "line\nbreak",
        "\x00",
        "\x1b[31m",
    ),
    *(
        "%",
        "100%",
        "%2F",
        "a%2Fb",
        "%%2F",
        "%25",
        "Zürich",
        "集団",
        "🚀",
        "\ue000",
        "\x85",
        "\uffff",
        "<script>",
        "g" * 1024,
    ),
)


@pytest.mark.parametrize(
    "name", ["g", "my-group_1.x", "two words", "Zürich", "集団", "100%", "a:b", "%2f", "…"]
)
def test_plain_names_are_their_own_element(name: str) -> None:
    assert znodes.group_element(name) == name
    assert znodes.group(name) == f"/consumers/{name}"


@given(TEXT | st.text("%/.2F5", min_size=1))
@example(".")
@example("..")
@example("%2E")
def test_an_element_is_read_back(name: str) -> None:
    element = znodes.group_element(name)
    assert znodes.group_name(element) == name
    assert "/" not in element
    assert element not in (".", "..")


@given(TEXT | st.text("%/.2F5", min_size=1), TEXT | st.text("%/.2F5", min_size=1))
def test_two_names_never_share_an_element(one: str, other: str) -> None:
    assert (znodes.group_element(one) == znodes.group_element(other)) == (one == other)


def test_odd_names_have_members_owners_and_offsets(zookeeper: ZooKeeperRoom) -> None:
    with zookeeper.session() as session:
        has_topics(session, "t")
        for number, name in enumerate(ODD_NAMES):
            registry = ConsumerRegistry(session, name)
            registry.commit("t", 0, number)
            registry.join("member", {"t": 1})
            registry.claim("t", 0, "member", wait_s=0)
        assert sorted(groups(session)) == sorted(ODD_NAMES)
        for number, name in enumerate(ODD_NAMES):
            registry = ConsumerRegistry(session, name)
            assert registry.all_offsets() == {("t", 0): number}
            assert registry.members() == {"member": {"t": 1}}
            assert registry.owners("t")[0].name == "member"
        assert sorted(session.children("/")) == ["brokers", "config", "consumers"], "nothing lies elsewhere"
