"""Certificates for tests of TLS: an authority, a broker's and clients' certificates, and wrong ones, as PEM files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

HOSTS = ("127.0.0.1", "localhost")


class Certificates:
    """PEM files in one directory, each with key and chain."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = trustme.CA()
        self._foreign_authority = trustme.CA()
        self.ca = self._path("ca")
        self.authority.cert_pem.write_to_path(self.ca)
        self.foreign_ca = self._path("foreign-ca")
        self._foreign_authority.cert_pem.write_to_path(self.foreign_ca)
        self.broker = self.issue("broker", *HOSTS)
        self.alice = self.issue("alice", "alice.example.org", common_name="alice")
        past = datetime.now(UTC) - timedelta(days=1)
        self.expired_broker = self.issue("expired-broker", *HOSTS, not_after=past)
        self.expired_alice = self.issue("expired-alice", "alice.example.org", common_name="alice", not_after=past)
        self.elsewhere = self.issue("elsewhere", "elsewhere.example.org")
        self.foreign_alice = self._path("foreign-alice")
        foreign = self._foreign_authority.issue_cert("alice.example.org", common_name="alice")
        foreign.private_key_and_cert_chain_pem.write_to_path(self.foreign_alice)

    def issue(
        self, name: str, *identities: str, common_name: str | None = None, not_after: datetime | None = None
    ) -> str:
        """Write a new certificate of the authority to the file `name`; return its path."""
        leaf = self.authority.issue_cert(*identities, common_name=common_name, not_after=not_after)
        leaf.private_key_and_cert_chain_pem.write_to_path(self._path(name))
        return self._path(name)

    def _path(self, name: str) -> str:
        return str(self._directory / f"{name}.pem")
