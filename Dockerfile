# The proxy alone: no torch, no vLLM. docker build -t seam:0.1.0 .
FROM python:3.11-slim AS build
WORKDIR /src
# An environment without pip: what serves needs no installer.
RUN python -m venv --without-pip /opt/seam
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
COPY calibrators calibrators
COPY bench bench
# What is installed is the folder, with the package's own ranges.
# hadolint ignore=DL3013
RUN pip --python /opt/seam/bin/python install --no-cache-dir --disable-pip-version-check '.[otel]'

FROM python:3.11-slim
RUN groupadd --gid 10001 seam \
    && useradd --uid 10001 --gid seam --no-create-home --shell /usr/sbin/nologin seam \
    && mkdir -p /etc/seam/profiles /var/log/seam \
    && chown seam:seam /var/log/seam
COPY --from=build /opt/seam /opt/seam
ENV PATH=/opt/seam/bin:$PATH PYTHONUNBUFFERED=1 SEAM_LISTEN__HOST=0.0.0.0
# By number, or Kubernetes' runAsNonRoot can't tell.
USER 10001:10001
# Of the decision log and the pinned drift windows, whose default paths are relative.
WORKDIR /var/log/seam
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["seam"]
CMD ["serve", "--config", "/etc/seam/seam.yaml"]
