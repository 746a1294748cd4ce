"""SCRAM: the vectors of the RFCs, another implementation at either end, and what is refused."""

import pytest
from scramp import ScramClient, ScramMechanism
from scramp.utils import ScramException

from warmlog_protocol.sasl.credential import MECHANISMS, Credential, why_unacceptable
from warmlog_protocol.sasl.derivation import derive_keys, make_credential, prepared, stand_in
from warmlog_protocol.sasl.scram import ClientExchange, ScramError, ServerExchange

SALT = b"0123456789ab"
SECRET = b"s" * 32


def credential(password: str = "pencil", mechanism: str = "SCRAM-SHA-256") -> Credential:
    return make_credential(mechanism, password, salt=SALT, iterations=4096)


def talk(client: ClientExchange, server: ServerExchange) -> None:
    client.finish(server.final(client.final(server.first(client.first()))))


def test_the_exchange_of_rfc_7677_is_reproduced() -> None:
    from base64 import b64decode

    stored = make_credential("SCRAM-SHA-256", "pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4096)
    client = ClientExchange("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    server = ServerExchange("SCRAM-SHA-256", lambda _: [stored], nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server_first = server.first(client.first())
    assert server_first == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    client_final = client.final(server_first)
    assert client_final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    server_final = server.final(client_final)
    assert server_final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.finish(server_final)


def test_the_keys_of_rfc_5802_differ_from_those_of_sha_256_by_the_hash_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from base64 import b64decode

    monkeypatch.setitem(MECHANISMS, "SCRAM-SHA-1", "sha1")
    stored = make_credential("SCRAM-SHA-1", "pencil", salt=b64decode("QSXCR+Q6sek8bf92"), iterations=4096)
    client = ClientExchange("SCRAM-SHA-1", "user", "pencil", nonce="fyko+d2lbbFgONRv9qkxdawL")
    server = ServerExchange("SCRAM-SHA-1", lambda _: [stored], nonce="3rfcNHYJY1ZVvWVs7j")
    client_final = client.final(server.first(client.first()))
    assert client_final == b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    assert server.final(client_final) == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["user", "a=b,c", "Jürgen", "=2C"])
def test_our_client_and_another_ones_server_understand_each_other(mechanism: str, name: str) -> None:
    theirs = ScramMechanism(mechanism)
    salt, stored_key, server_key, iterations = theirs.make_auth_info("pässword", iteration_count=4096)
    server = theirs.make_server(lambda user: (salt, stored_key, server_key, iterations) if user == name else None)
    client = ClientExchange(mechanism, name, "pässword")
    server.set_client_first(client.first().decode())
    client_final = client.final(server.get_server_first().encode())
    server.set_client_final(client_final.decode())
    client.finish(server.get_server_final().encode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["user", "a=b,c", "Jürgen", "=2C"])
def test_our_server_and_another_ones_client_understand_each_other(mechanism: str, name: str) -> None:
    stored = make_credential(mechanism, "pässword")
    server = ServerExchange(mechanism, lambda user: [stored] if user == name else [])
    client = ScramClient([mechanism], name, "pässword")
    client.set_server_first(server.first(client.get_client_first().encode()).decode())
    client.set_server_final(server.final(client.get_client_final().encode()).decode())
    assert server.username == name


def test_another_ones_client_with_a_wrong_password_is_refused() -> None:
    server = ServerExchange("SCRAM-SHA-256", lambda _: [credential()])
    client = ScramClient(["SCRAM-SHA-256"], "user", "pen")
    client.set_server_first(server.first(client.get_client_first().encode()).decode())
    with pytest.raises(ScramError, match="password is wrong"):
        server.final(client.get_client_final().encode())


def test_our_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = ClientExchange("SCRAM-SHA-256", "user", "pencil")
    server = ServerExchange("SCRAM-SHA-256", lambda _: [credential()])
    client.final(server.first(client.first()))
    with pytest.raises(ScramError, match="may be another one"):
        client.finish(b"v=" + b"A" * 43 + b"=")
    with pytest.raises(ScramError):
        client.finish(b"e=other-error")


def test_a_client_that_has_not_sent_its_proof_accepts_no_signature() -> None:
    with pytest.raises(ScramError):
        ClientExchange("SCRAM-SHA-256", "user", "pencil").finish(b"v=")


def test_two_passwords_are_valid_if_both_are_stored() -> None:
    for password in ("old", "new"):
        server = ServerExchange("SCRAM-SHA-256", lambda _: [credential("new"), credential("old")])
        talk(ClientExchange("SCRAM-SHA-256", "user", password), server)


def test_a_message_that_is_sent_again_belongs_to_no_other_exchange() -> None:
    client = ClientExchange("SCRAM-SHA-256", "user", "pencil")
    first_server, second_server = (ServerExchange("SCRAM-SHA-256", lambda _: [credential()]) for _ in range(2))
    client_final = client.final(first_server.first(client.first()))
    first_server.final(client_final)
    second_server.first(client.first())
    with pytest.raises(ScramError, match="another exchange"):
        second_server.final(client_final)


def test_no_password_fits_a_user_that_does_not_exist_and_its_salt_is_always_the_same() -> None:
    made = stand_in("SCRAM-SHA-256", "user", SECRET)
    assert why_unacceptable(made) == ""
    assert made == stand_in("SCRAM-SHA-256", "user", SECRET)
    assert made.salt != stand_in("SCRAM-SHA-256", "other", SECRET).salt != stand_in("SCRAM-SHA-256", "other", b"").salt
    with pytest.raises(ScramError, match="password is wrong"):
        talk(ClientExchange("SCRAM-SHA-256", "user", "pencil"), ServerExchange("SCRAM-SHA-256", lambda _: [made]))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=nonce,n=user",
        b"n,,n=,r=nonce",
        b"n,,n=user,r=",
        b"n,,m=x,n=user,r=nonce",
        b"n,a=admin,n=user,r=nonce",
        b"p=tls-unique,,n=user,r=nonce",
        b"n,,n=us=er,r=nonce",
        b"n,,n=\xff,r=nonce",
        b"n,,n=" + b"u" * 5000 + b",r=nonce",
    ],
)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        ServerExchange("SCRAM-SHA-256", lambda _: [credential()]).first(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"c=biws,r=NONCE",
        b"c=biws,r=other,p=AAAA",
        b"c=eSws,r=NONCE,p=AAAA",
        b"c=biws,r=NONCE,p=",
        b"c=biws,r=NONCE,p=AAAA",
        b"c=biws,r=NONCE,p=!!!!",
        b"c=!,r=NONCE,p=AAAA",
        b"r=NONCE,c=biws,p=AAAA",
    ],
)
def test_a_malformed_or_wrong_final_message_is_refused(message: bytes) -> None:
    server = ServerExchange("SCRAM-SHA-256", lambda _: [credential()], nonce="bb")
    server.first(b"n,,n=user,r=aa")
    with pytest.raises(ScramError):
        server.final(message.replace(b"NONCE", b"aabb"))


@pytest.mark.parametrize(
    "message",
    [
        b"r=NONCEx,s=c2FsdA==,i=4095",
        b"r=NONCEx,s=c2FsdA==,i=1000001",
        b"r=NONCEx,s=c2FsdA==,i=-1",
        b"r=NONCEx,s=c2FsdA==,i=x",
        b"r=NONCE,s=c2FsdA==,i=4096",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=NONCEx,s=!,i=4096",
        b"r=NONCEx,s=" + b"AAAA" * 100 + b",i=4096",
        b"e=unknown-user",
        b"\xff",
    ],
)
def test_a_client_refuses_a_server_that_asks_for_too_little_or_too_much(message: bytes) -> None:
    client = ClientExchange("SCRAM-SHA-256", "user", "pencil", nonce="aa")
    with pytest.raises(ScramError):
        client.final(message.replace(b"NONCE", b"aa"))


def test_text_is_prepared_as_rfc_4013_says() -> None:
    examples = {"I\u00adX": "IX", "user": "user", "USER": "USER", "\u00aa": "a", "\u2168": "IX", "a\u00a0b": "a b"}
    assert {text: prepared(text) for text in examples} == examples
    for text in ("\u0007", "\u0627\u0031", "", "\u00ad"):
        with pytest.raises(ValueError, match="it "):
            prepared(text)


def test_a_password_that_cannot_be_prepared_is_not_in_the_error() -> None:
    with pytest.raises(ValueError, match="control") as found:
        make_credential("SCRAM-SHA-256", "secret\u0007")
    assert "secret" not in str(found.value)


def test_what_holds_a_key_does_not_show_it() -> None:
    keys = derive_keys("SCRAM-SHA-256", "pencil", SALT, 4096)
    shown = f"{keys!r} {keys!s} {credential()!r} {credential()!s} {[credential()]}"
    for secret in (keys.client, keys.stored, keys.server, SALT):
        assert repr(secret)[2:-1] not in shown


def test_an_exchange_of_two_implementations_notices_the_wrong_mechanism() -> None:
    server = ServerExchange("SCRAM-SHA-512", lambda _: [credential(mechanism="SCRAM-SHA-512")])
    client = ScramClient(["SCRAM-SHA-256"], "user", "pencil")
    client.set_server_first(server.first(client.get_client_first().encode()).decode())
    with pytest.raises(ScramError):
        server.final(client.get_client_final().encode())
    with pytest.raises(ScramException):
        client.set_server_final("e=other-error")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Credential("PLAIN", SALT, 4096, b"k" * 32, b"k" * 32), "mechanism"),
        (Credential("SCRAM-SHA-256", SALT, 4095, b"k" * 32, b"k" * 32), "iterations"),
        (Credential("SCRAM-SHA-256", SALT, 10_000_000, b"k" * 32, b"k" * 32), "iterations"),
        (Credential("SCRAM-SHA-256", b"salt", 4096, b"k" * 32, b"k" * 32), "salt"),
        (Credential("SCRAM-SHA-256", SALT, 4096, b"k" * 31, b"k" * 32), "key"),
        (Credential("SCRAM-SHA-512", SALT, 4096, b"k" * 64, b"k" * 32), "key"),
    ],
)
def test_a_credential_that_breaks_a_rule_is_refused(wrong: Credential, reason: str) -> None:
    assert reason in why_unacceptable(wrong)
    assert why_unacceptable(credential()) == ""
