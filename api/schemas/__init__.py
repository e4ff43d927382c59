"""What the API answers and takes, as it stands on the wire: one noun a file. These types encode the answers and make
the OpenAPI document.

User data is `msgspec.Raw`: it leaves as the bytes that came in. Instants are RFC 3339 in UTC. A field is only ever
added.
"""
