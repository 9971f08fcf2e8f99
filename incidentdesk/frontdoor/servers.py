"""PostgreSQL and Valkey together: the ones of the environment, else embedded ones."""

import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import take_lock
from incidentdesk.frontdoor.postgres import PostgresServer
from incidentdesk.frontdoor.valkey import ValkeyServer

MOST_PARALLEL_TEST_RUNS = 64


class EmbeddedServers:
    """The two servers under one directory, `root/postgres` and `root/valkey`.

        with EmbeddedServers(Path(".desk"), durable=True) as servers:
            run(env=os.environ | servers.environment())

    With `use_environment`, a DATABASE_URL or REDIS_URL that is set is taken and nothing is started for it.
    URLs are known before anything runs, so settings may be loaded first. `durable=False` is for tests.
    """

    def __init__(self, root: Path, *, durable: bool, use_environment: bool = True) -> None:
        self.root = root.absolute()
        given = os.environ if use_environment else {}
        self._database_url = given.get("DATABASE_URL", "")
        self._redis_url = given.get("REDIS_URL", "")
        self.postgres = (
            None if self._database_url else PostgresServer(self.root / "postgres", durable=durable)
        )
        self.valkey = None if self._redis_url else ValkeyServer(self.root / "valkey")
        self._slot: IO[str] | None = None

    @classmethod
    def in_free_slot(cls, parent: Path, *, use_environment: bool = False) -> Self:
        """Give test servers in the first directory `parent/0`, `parent/1`, … that no other run uses.

        The directory is kept, so the next run finds its database cluster made. Not started yet.
        """
        for number in range(MOST_PARALLEL_TEST_RUNS):
            root = parent / str(number)
            if slot := take_lock(root / "slot.lock"):
                servers = cls(root, durable=False, use_environment=use_environment)
                servers._slot = slot
                return servers
        raise FrontDoorError(f"{MOST_PARALLEL_TEST_RUNS} test runs use {parent} already.")

    @property
    def database_url(self) -> str:
        return self._database_url or (self.postgres.url() if self.postgres else "")

    @property
    def redis_url(self) -> str:
        return self._redis_url or (self.valkey.url() if self.valkey else "")

    def environment(self) -> dict[str, str]:
        """Give the variables by which our programs find the servers."""
        return {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url}

    def start(self) -> None:
        """Start both and make the database; nothing happens for what runs already."""
        if self.valkey is not None:
            self.valkey.start()
        if self.postgres is not None:
            self.postgres.start()
            self.postgres.create_database()

    def stop(self) -> None:
        """Stop what was started. May be called twice."""
        for server in (self.valkey, self.postgres):
            if server is not None:
                server.stop()
        if self._slot is not None:
            self._slot.close()
            self._slot = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
