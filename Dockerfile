# An image with the program and nothing else: no shell, no libraries, no root.
#
#   docker build -t holdfast .
#   docker run -p 127.0.0.1:1883:1883 -v holdfast:/data -e HOLDFAST_ALLOW_ANONYMOUS=true holdfast
#
# docs/installing.md has more.

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
ARG TARGETVARIANT
ARG VERSION
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH GOARM=${TARGETVARIANT#v} \
    go build -trimpath -tags nethttpomithttp2 -ldflags "-s -w -X main.release=$VERSION $([ "$TARGETARCH" != amd64 ] || echo -funcalign=4)" -o /out/holdfast ./cmd/holdfast
RUN install -d -m 0700 /out/data

FROM scratch
COPY --from=build /out/holdfast /holdfast
COPY --from=build --chown=65532:65532 /out/data /data
COPY deploy/docker/holdfast.yaml /etc/holdfast/holdfast.yaml
USER 65532:65532
VOLUME /data
EXPOSE 1883
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["/holdfast", "health", "--data", "/data"]
ENTRYPOINT ["/holdfast"]
CMD ["serve", "--config", "/etc/holdfast/holdfast.yaml"]
