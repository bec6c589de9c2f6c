"""Kafka's examples of ssl.principal.mapping.rules (KIP-371, and those of its documentation)."""

import pytest

from logstore.tls.principal_mapping import PrincipalMapping

RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=JavaBrother,OU=SSC", "javabrother"),
        ("O=Org,C=US", "O=Org,C=US"),
    ],
)
def test_the_first_rule_for_the_whole_subject_counts(subject: str, name: str) -> None:
    assert PrincipalMapping.parse(RULES).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("", "CN=a", "CN=a"),
        (" DEFAULT ", "CN=a", "CN=a"),
        ("RULE:CN=(\\w+)/$1/U", "CN=a", "A"),
        ("RULE:CN=(\\w+)/$1-$2/", "CN=a", "a-$2"),
        (r"RULE:CN=(.*)\/x/$1\/y/", "CN=a/x", "a/y"),
        ("RULE:CN=a,O=b/both/", "CN=a,O=b", "both"),
        ("RULE:CN=a/first/", "CN=ab", None),
    ],
)
def test_a_rule_is_read_as_kafka_reads_it(rules: str, subject: str, name: str | None) -> None:
    assert PrincipalMapping.parse(rules).name_of(subject) == name


@pytest.mark.parametrize("rules", ["default", "RULE:a", "RULE:a/b", "RULE:(/x/", "DEFAULT DEFAULT", "RULE:a/b/X", ","])
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"it takes DEFAULT|no regular expression"):
        PrincipalMapping.parse(rules)
