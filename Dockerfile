# syntax=docker/dockerfile:1
FROM golang:1.26-bookworm AS build
WORKDIR /src
# Modules first: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# Such as 1.4.2 or a commit: what metrics and traces show as the version.
ARG VERSION=0.1.0-dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w -X main.version=${VERSION}" -o /out/loopd ./cmd/loopd

# Nothing but certificates, a user and the binary.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/loopd /usr/local/bin/loopd
USER nonroot:nonroot
# REST and events, gRPC, admin (metrics and health).
EXPOSE 8080 8081 8082
# The first signal drains: runs stop at the next commit and go to other workers.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/loopd"]
CMD ["serve"]
