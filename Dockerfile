# The proxy alone: no torch, no vLLM. Build: docker build -t seam .
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
COPY calibrators calibrators
COPY bench bench
RUN pip install --no-cache-dir --prefix=/install .

FROM python:3.11-slim
COPY --from=build /install /usr/local
RUN useradd --system --uid 10001 seam && mkdir -p /etc/seam/profiles /var/log/seam && chown seam /var/log/seam
USER seam
WORKDIR /var/log/seam
ENV SEAM_LISTEN__HOST=0.0.0.0
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["seam"]
CMD ["serve", "--config", "/etc/seam/seam.yaml"]
