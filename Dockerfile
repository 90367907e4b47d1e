# A server of models on the CPU. See docs/installation.md.
# This file has not been built yet; its commands were tried in a virtual environment.
FROM python:3.13-slim

RUN useradd --create-home pibert
COPY pyproject.toml README.md LICENSE /src/
COPY pibert /src/pibert
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir "/src[serve]" \
    && rm -r /src

USER pibert
WORKDIR /home/pibert
EXPOSE 8000
HEALTHCHECK --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready')"]
ENTRYPOINT ["pibert", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["cylinder-mr"]
