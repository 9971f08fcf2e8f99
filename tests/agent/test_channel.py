"""The way to the desk: addresses, TLS, waits."""

import datetime
import ipaddress
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agent import wire
from agent.channel import Backoff, encode, split_url
from tests.agent.conftest import SECRET, AgentProcess
from tests.agent.fake_desk import FakeDesk


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://desk", (False, "desk", None, "")),
        ("https://desk:8443/", (True, "desk", 8443, "")),
        ("http://127.0.0.1:80/incidents/", (False, "127.0.0.1", 80, "/incidents")),
        ("https://[::1]:8443", (True, "::1", 8443, "")),
    ],
)
def test_address(url: str, parts: tuple[bool, str, int | None, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize("url", ["desk:80", "ftp://desk", "http://", "http://desk:eighty", "http://:80"])
def test_address_that_cannot_work(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        split_url(url)


def test_wrong_address_is_said_and_the_command_runs(start: Callable[..., AgentProcess]) -> None:
    agent = start("-c", "exit 5", INCIDENTDESK_URL="desk.example", INCIDENTDESK_ENROL_SECRET=SECRET)
    code, _out, err = agent.finish()
    assert code == 5
    assert b"must begin with http:// or https://" in err


def test_missing_credential_is_said_and_the_command_runs(start: Callable[..., AgentProcess]) -> None:
    agent = start(
        "-c", "exit 5", INCIDENTDESK_URL="http://127.0.0.1:1", INCIDENTDESK_TOKEN_FILE="/no/such/token"
    )
    code, _out, err = agent.finish()
    assert code == 5
    assert b"no credential" in err


def test_waits_grow_to_a_bound_and_start_again() -> None:
    backoff = Backoff(most=1.0)
    waits = [backoff.next() for _ in range(10)]
    assert 0.05 <= waits[0] <= 0.1
    assert all(0.5 <= wait <= 1.0 for wait in waits[5:])
    assert backoff.next(told=30.0) >= 30.0
    backoff.reset()
    assert backoff.next() <= 0.1


def test_bodies_are_not_blown_up_by_escapes() -> None:
    assert len(encode({"line": "�" * 1000})) < 3100


def make_certificate(directory: Path) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "desk")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(exist_ok=True)
    certificate_path, key_path = directory / "ca.crt", directory / "key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(certificate_path), str(key_path)


def test_tls_by_the_mounted_ca_and_none_other(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    trusted = tmp_path / "config"
    desk = FakeDesk(make_certificate(trusted))
    try:
        (trusted / "url").write_text(desk.url + "\n")
        start("--", "sleep", "1000", INCIDENTDESK_CONFIG_DIR=str(trusted), INCIDENTDESK_ENROL_SECRET=SECRET)
        desk.run_command()
        desk.wait_for_message(wire.MARK, mark=wire.MARK_STARTED)

        other = tmp_path / "other"
        make_certificate(other)
        (other / "url").write_text(desk.url + "\n")
        agent = start(
            "-c", "exit 5", INCIDENTDESK_CONFIG_DIR=str(other), INCIDENTDESK_ENROL_SECRET=SECRET,
            INCIDENTDESK_NO_CONTACT_SECONDS="0.5",
        )  # fmt: skip
        code, _out, err = agent.finish()
        assert code == 5
        assert b"CERTIFICATE_VERIFY_FAILED" in err
        assert len(desk.enrolments) == 1
    finally:
        desk.close()
