# The proxy with its HTTP front. docs/docker.md explains how to run and extend this image.
# One variable per ENV and one command per RUN: .ci/image.py reads this file and runs its steps without Docker.

# Images and packages are those that were reviewed: by digest, and by the hashes in requirements/ (bash .ci/lock).

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/build
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement requirements/build.txt
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist .
RUN python -m venv /opt/venv
RUN /opt/venv/bin/pip install --no-cache-dir --require-hashes --requirement requirements/proxy.txt
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps /dist/*.whl

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS proxy
COPY --from=build /opt/venv /opt/venv
RUN useradd --uid 10001 --home-dir /data --no-create-home context-proxy
RUN install --directory --owner=10001 --group=10001 --mode=0700 /data

ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin
ENV HOME=/data
ENV XDG_DATA_HOME=/data
ENV MCP_CONTEXT_PROXY_CONFIG=/config/config.toml
# A volume shows the permissions and owners of the host; whoever mounts it decides what runs here anyway.
ENV MCP_CONTEXT_PROXY_TRUST_CONFIG=1
# A container is one proxy already; a session over its stdio needs no second process.
ENV MCP_CONTEXT_PROXY_OWN=1

USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8765
STOPSIGNAL SIGTERM
# A probe, which is answered under any Host, and without the network proxy that the environment may name.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15s CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8765, timeout=4); c.request('GET', '/livez'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["mcp-context-proxy"]
CMD ["serve", "--http", "--host", "0.0.0.0", "--port", "8765"]

# docker build --target runners: also what starts servers with npx and uvx.
FROM proxy AS runners
USER 0:0
RUN apt-get update && apt-get install --yes --no-install-recommends nodejs npm && rm -rf /var/lib/apt/lists/*
COPY requirements/runners.txt /opt/runners.txt
RUN pip install --no-cache-dir --require-hashes --requirement /opt/runners.txt
USER 10001:10001

# The last one is built where no target is named.
FROM proxy
