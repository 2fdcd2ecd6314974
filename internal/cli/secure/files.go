package secure

// configText is the configuration. LISTEN stands for the listener's URL.
const configText = `# The configuration of a server: holdfast serve --config FILE
#
# Every flag of holdfast serve is a setting here, without its --. The names of files are
# relative to this one. docs/security.md has all of it.

data: data

listeners:
  - url: LISTEN
    # tls-client-auth: optional lets clients in that have no certificate, but a user name
    # and a password; required wants a certificate of all.
    tls-client-auth: optional
    tls-client-ca: ca.crt
    tls-crl: ca.crl
  # A listener for programs on this machine, without TLS:
  # - url: mqtt://127.0.0.1:1883

tls-cert: server.crt
tls-key: server.key

password-file: passwords
policy: policy.yaml
`

// policyText is the policy.
const policyText = `# Who may do what. Rules only allow: what no rule allows is denied. The server reads this
# file again when it has changed. To look at it before: holdfast policy check FILE.

groups:
  # Administrators get in when all connections and sessions are taken.
  administrators:
    attributes:
      - CN: admin
    quotas:
      reserve: true

rules:
  # The administrator, who has the certificate admin.crt, may do everything.
  - principals:
      groups: [administrators]
    brokerResources:
      - method: Connect
      - method: Publish
        topics: ["#"]
      - method: Subscribe
        topics: ["#", "$SYS/#"]
    stateStoreResources:
      - method: ReadWrite
        keyType: Pattern
        keys: ["*"]

  # Every other client may connect under its own name, and use the topics and the keys
  # that have it in them. Change this to what your clients need. A client's name is its
  # user name, or the common name of its certificate.
  - brokerResources:
      - method: Connect
        clientIds: ["{principal.username}", "{principal.username}:*"]
      - method: Publish
        topics:
          - "clients/{principal.username}/#"
          # requests to the state store
          - statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke
      - method: Subscribe
        topics:
          - "clients/{principal.username}/#"
          # the store's responses, and its notifications, which reach only who asked for them
          - "clients/{principal.clientId}/services/statestore/#"
          - clients/+/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response
          - clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/+/command/notify/#
    stateStoreResources:
      - method: ReadWrite
        keyType: Pattern
        keys: ["{principal.username}/*"]
`

// passwordText is a password file without users.
const passwordText = `# User names and passwords, in the format of mosquitto_passwd. holdfast passwd edits it.
`
