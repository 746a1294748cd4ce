"""The asyncio connection of the build that is measured: 987e0da has it in `warmlog.cluster`."""

try:
    from warmlog_transport.address import Address, parse_address
    from warmlog_transport.connection import Connection
    from warmlog_transport.options import ConnectionOptions

    async def connect(address: Address, options: ConnectionOptions) -> Connection:
        """Return a connection to a broker."""
        return await Connection(address, options).open()

except ImportError:
    from warmlog.cluster.address import parse_address  # type: ignore[no-redef, import-not-found]
    from warmlog.cluster.connection import Connection  # type: ignore[no-redef, import-not-found]
    from warmlog.cluster.options import ConnectionOptions  # type: ignore[no-redef, import-not-found]

    connect = Connection.open  # type: ignore[assignment]

__all__ = ["Connection", "ConnectionOptions", "connect", "parse_address"]
