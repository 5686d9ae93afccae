// Package archtest holds no code, only tests: they read the sources of the whole
// module and fail where the architecture is broken. ARCHITECTURE.md says why each
// rule exists. Every rule is also tried on a small bad sample, so that a rule that
// can no longer fail is noticed.
package archtest
