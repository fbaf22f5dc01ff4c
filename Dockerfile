# The server with its models: docker build -t agentformer . (docs/CONTAINERS.md). Python is that of Debian, on amd64 and arm64.
FROM debian:trixie-slim AS build
ARG EXTRAS=server,mcp,multilingual,metrics,llm,postgres
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock ./
RUN sed -n 's/^\([A-Za-z][^ ;]*==[^ ;]*\).*/\1/p' requirements.lock > /versions \
    && python3 -m venv /opt/agentformer
COPY pyproject.toml setup.py README.md LICENSE ./
COPY agentformer/ agentformer/
RUN /opt/agentformer/bin/pip install --no-cache-dir --quiet --constraint /versions ".[${EXTRAS}]" \
    && /opt/agentformer/bin/pip uninstall --quiet --yes pip \
    && touch /opt/agentformer/agentformer-image

FROM debian:trixie-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin agentformer \
    && install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=build /opt/agentformer /opt/agentformer
ENV PATH=/opt/agentformer/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/data \
    XDG_CACHE_HOME=/data/cache \
    AGENTFORMER_INDEX_DIR=/data/indexes \
    AGENTFORMER_UPLOAD_DIR=/data/uploads \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /data
USER 10001:10001
VOLUME /data
EXPOSE 8808
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8808/healthz', timeout=4)"]
ENTRYPOINT ["agentformer"]
CMD ["serve", "--host", "0.0.0.0", "--log-format", "json"]
