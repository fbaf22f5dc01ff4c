"""The backend `postgres` beside `faiss`; see `bench.scaling.__main__`."""
